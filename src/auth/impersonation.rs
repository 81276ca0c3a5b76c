//! Acting as somebody else, on a direct call. Through the aggregator this is resolved already and the headers are gone.

use std::{collections::BTreeMap, fmt, sync::Arc};

use http::{HeaderMap, HeaderName};

use super::{
    Attributes, Authorizer, Decision, Error, Identity, Origin, ResourceAttributes, UserInfo,
    request_header::{NotText, extra_key, remove_prefixed, text},
    user::{ANONYMOUS, UNAUTHENTICATED},
};

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const EXTRA_PREFIX: &str = "impersonate-extra-";
const PREFIX: &str = "impersonate-";

const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// Items one request may ask for: each is a review.
const MAX_ITEMS: usize = 128;

/// Why a request may not act as somebody else.
#[derive(Debug, thiserror::Error)]
pub enum ImpersonationError {
    /// The headers make no sense: 400.
    #[error("{0}")]
    BadRequest(&'static str),
    /// The caller may not act as this: 403.
    #[error("user {:?} cannot impersonate {wanted}", caller.name)]
    Forbidden {
        /// Who wanted to.
        caller: Arc<UserInfo>,
        /// What was wanted.
        wanted: Box<Impersonated>,
        /// Why not, as the authorizer puts it.
        reason: Option<Arc<str>>,
    },
    /// kube-apiserver could not be asked: 500.
    #[error("cannot find out whether the caller may impersonate")]
    Unknown(#[from] Error),
}

/// One thing that a caller wants to be: a user, a group, a uid or a value of an extra.
#[derive(Debug, PartialEq, Eq)]
pub struct Impersonated {
    group: &'static str,
    resource: &'static str,
    subresource: String,
    namespace: String,
    name: String,
}

/// Who the request acts as: whom its `Impersonate-*` headers name, if the caller may be all of that, or else the caller.
/// Afterwards the headers are gone.
///
/// # Errors
/// See [`ImpersonationError`]. The caller must not go on with the caller's own identity.
pub async fn impersonate(
    authorizer: &Authorizer,
    caller: Identity,
    headers: &mut HeaderMap,
) -> Result<Identity, ImpersonationError> {
    let wanted = wanted(headers);
    remove_prefixed(headers, PREFIX);
    let Some((user, items)) = wanted? else {
        return Ok(caller);
    };
    for item in items {
        let attributes = Attributes::Resource(item.attributes());
        // Asked exactly, also by who came through the proxy: kube-apiserver has not asked this.
        let decision = authorizer
            .authorize(&caller.user, &attributes, Origin::Direct)
            .await?;
        if let Decision::Deny { reason } = decision {
            return Err(ImpersonationError::Forbidden {
                caller: caller.user,
                wanted: Box::new(item),
                reason,
            });
        }
    }
    Ok(Identity {
        user: Arc::new(user),
        origin: Origin::Direct,
    })
}

/// Whom the headers name, and what the caller must be allowed to be for that.
fn wanted(
    headers: &HeaderMap,
) -> Result<Option<(UserInfo, Vec<Impersonated>)>, ImpersonationError> {
    use ImpersonationError::BadRequest;
    let not_text = |_: NotText| BadRequest("impersonation headers must be UTF-8");
    let one = |name: HeaderName| match headers.get(&name).filter(|value| !value.is_empty()) {
        Some(value) => text(value).map(Some).map_err(not_text),
        None => Ok(None),
    };
    let uid = one(UID)?;
    let groups: Vec<String> = headers
        .get_all(GROUP)
        .into_iter()
        .map(text)
        .collect::<Result<_, _>>()
        .map_err(not_text)?;
    let extra = extra(headers).map_err(not_text)?;
    let Some(name) = one(USER)? else {
        return match uid.is_none() && groups.is_empty() && extra.is_empty() {
            true => Ok(None),
            false => Err(BadRequest(
                "requested a group, uid or extra without impersonating a user",
            )),
        };
    };
    let user = UserInfo {
        name,
        uid,
        groups,
        extra,
    };
    let items = items(&user);
    if items.len() > MAX_ITEMS {
        return Err(BadRequest("too many impersonation headers"));
    }
    Ok(Some((completed(user), items)))
}

fn extra(headers: &HeaderMap) -> Result<BTreeMap<String, Vec<String>>, NotText> {
    let mut extra = BTreeMap::<_, Vec<_>>::new();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA_PREFIX) {
            extra
                .entry(extra_key(key).into_owned())
                .or_default()
                .push(text(value)?);
        }
    }
    Ok(extra)
}

fn items(user: &UserInfo) -> Vec<Impersonated> {
    let item = |group, resource, subresource: &str, name: &str| Impersonated {
        group,
        resource,
        subresource: subresource.to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
    };
    let mut items = vec![match service_account(&user.name) {
        Some((namespace, name)) => Impersonated {
            namespace: namespace.to_owned(),
            ..item("", "serviceaccounts", "", name)
        },
        None => item("", "users", "", &user.name),
    }];
    items.extend(
        user.groups
            .iter()
            .map(|group| item("", "groups", "", group)),
    );
    let extra = user
        .extra
        .iter()
        .flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
    items.extend(extra.map(|(key, value)| item(AUTHENTICATION_GROUP, "userextras", key, value)));
    items.extend(
        user.uid
            .iter()
            .map(|uid| item(AUTHENTICATION_GROUP, "uids", "", uid)),
    );
    items
}

/// Adds the groups that the named user has by itself.
fn completed(mut user: UserInfo) -> UserInfo {
    if user.groups.is_empty()
        && let Some((namespace, _)) = service_account(&user.name)
    {
        user.groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
    }
    if user.name == ANONYMOUS && !user.is_in(UNAUTHENTICATED) {
        user.groups.push(UNAUTHENTICATED.to_owned());
    }
    user.mark_authenticated();
    user
}

/// Namespace and name of a service account's user name.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    let valid = crate::meta::is_dns1123_label(namespace) && crate::meta::is_dns1123_subdomain(name);
    valid.then_some((namespace, name))
}

impl Impersonated {
    /// What the caller was asked to be allowed: verb `impersonate` on `users`, `serviceaccounts`, `groups`, `uids` or
    /// `userextras/KEY`.
    pub fn attributes(&self) -> ResourceAttributes<'_> {
        ResourceAttributes {
            verb: "impersonate",
            group: self.group,
            version: "v1",
            resource: self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            ..ResourceAttributes::default()
        }
    }
}

impl fmt::Display for Impersonated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.resource, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |&(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    fn mk_caller() -> Identity {
        Identity {
            user: Arc::new(UserInfo::new("admin", &["system:masters"])),
            origin: Origin::Direct,
        }
    }

    #[track_caller]
    fn reviewed(pairs: &[(&str, &str)], expected: &[&str]) {
        let (_, items) = wanted(&mk_headers(pairs)).unwrap().unwrap();
        let items: Vec<String> = items
            .iter()
            .map(|item| {
                [
                    item.group,
                    item.resource,
                    &item.subresource,
                    &item.namespace,
                    &item.name,
                ]
                .join("|")
            })
            .collect();
        assert_eq!(items, expected);
    }

    #[test]
    fn every_item_is_reviewed_by_itself() {
        reviewed(&[("Impersonate-User", "ann")], &["|users|||ann"]);
        reviewed(
            &[
                ("Impersonate-User", "system:serviceaccount:ns:sa"),
                ("Impersonate-Group", "a"),
                ("Impersonate-Group", "b"),
                ("Impersonate-Uid", "1"),
                ("Impersonate-Extra-Example.org%2Frole", "x"),
                ("Impersonate-Extra-Example.org%2Frole", "y"),
            ],
            &[
                "|serviceaccounts||ns|sa",
                "|groups|||a",
                "|groups|||b",
                "authentication.k8s.io|userextras|example.org/role||x",
                "authentication.k8s.io|userextras|example.org/role||y",
                "authentication.k8s.io|uids|||1",
            ],
        );
        reviewed(
            &[("Impersonate-User", "system:serviceaccount:NS:sa")],
            &["|users|||system:serviceaccount:NS:sa"],
        );
    }

    #[tokio::test]
    async fn the_named_user_gets_its_own_groups_and_no_header_stays() {
        let authorizer = Authorizer::always_allow();
        for (name, groups) in [
            ("ann", &["system:authenticated"][..]),
            ("system:anonymous", &["system:unauthenticated"]),
            (
                "system:serviceaccount:ns:sa",
                &[
                    "system:serviceaccounts",
                    "system:serviceaccounts:ns",
                    "system:authenticated",
                ],
            ),
        ] {
            let mut headers = mk_headers(&[("Impersonate-User", name), ("Accept", "*/*")]);
            let identity = impersonate(&authorizer, mk_caller(), &mut headers)
                .await
                .unwrap();
            assert_eq!(
                (identity.user.name.as_str(), &identity.user.groups[..]),
                (
                    name,
                    &groups.iter().map(|&g| g.to_owned()).collect::<Vec<_>>()[..]
                )
            );
            assert_eq!(headers, mk_headers(&[("Accept", "*/*")]));
        }
        let mut headers = mk_headers(&[("Impersonate-User", "ann"), ("Impersonate-Group", "a")]);
        let identity = impersonate(&authorizer, mk_caller(), &mut headers)
            .await
            .unwrap();
        assert_eq!(identity.user.groups, ["a", "system:authenticated"]);
    }

    #[tokio::test]
    async fn without_headers_the_caller_stays_the_caller() {
        let mut headers = mk_headers(&[("Accept", "*/*")]);
        let identity = impersonate(&Authorizer::always_allow(), mk_caller(), &mut headers)
            .await
            .unwrap();
        assert_eq!(identity, mk_caller());
    }

    #[tokio::test]
    async fn headers_without_a_user_are_never_ignored() {
        for pair in [
            ("Impersonate-Group", "a"),
            ("Impersonate-Uid", "1"),
            ("Impersonate-Extra-A", "x"),
        ] {
            let mut headers = mk_headers(&[pair]);
            let outcome = impersonate(&Authorizer::always_allow(), mk_caller(), &mut headers).await;
            assert!(
                matches!(outcome, Err(ImpersonationError::BadRequest(_))),
                "{pair:?}"
            );
            assert!(headers.is_empty());
        }
        let many: Vec<_> = (0..MAX_ITEMS)
            .map(|_| ("Impersonate-Group", "a"))
            .chain([("Impersonate-User", "u")])
            .collect();
        assert!(wanted(&mk_headers(&many)).is_err());
    }
}
