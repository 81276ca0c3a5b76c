//! What is asked for, and the key under which the answer is kept.

use sha2::{Digest, Sha256};

use crate::meta::{FieldOp, FieldSelector, LabelOp, LabelSelector};

use super::{UserInfo, answers::Key};

/// A request as authorization sees it. Borrowed: it is made for every request and kept by none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attributes<'a> {
    /// A request for a resource of the API.
    Resource(ResourceAttributes<'a>),
    /// A request for any other path.
    NonResource {
        /// The HTTP method in lower case.
        verb: &'a str,
        /// The path, without query.
        path: &'a str,
    },
}

/// The attributes of a request for a resource. Empty strings stand for what a request does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResourceAttributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or a verb of its own.
    pub verb: &'a str,
    /// The API group.
    pub group: &'a str,
    /// The API version.
    pub version: &'a str,
    /// The resource's plural.
    pub resource: &'a str,
    /// The subresource.
    pub subresource: &'a str,
    /// The namespace; empty for a cluster-wide request.
    pub namespace: &'a str,
    /// The object's name; also the one a field selector requires.
    pub name: &'a str,
    /// The label selector of a list, watch or deletecollection; `None` also when it cannot be parsed.
    pub label_selector: Option<&'a LabelSelector>,
    /// The field selector of a list, watch or deletecollection; `None` also when it cannot be parsed.
    pub field_selector: Option<&'a FieldSelector>,
}

impl Attributes<'_> {
    /// The same question without the object's name, if it has one.
    pub(super) fn without_name(&self) -> Option<Self> {
        match self {
            Self::Resource(resource) if !resource.name.is_empty() => {
                Some(Self::Resource(ResourceAttributes {
                    name: "",
                    ..*resource
                }))
            }
            _ => None,
        }
    }

    /// The key of "may `user` do this?" and the length of the part that the caller chose.
    pub(super) fn key(&self, user: &UserInfo) -> (Key, usize) {
        let mut question = Question::default();
        question.user(user);
        let of_user = question.length;
        match self {
            Self::NonResource { verb, path } => {
                question.text("path");
                question.texts([verb, path]);
            }
            Self::Resource(resource) => {
                question.text("resource");
                question.resource(resource);
            }
        }
        (
            Key(question.hash.finalize().into()),
            question.length - of_user,
        )
    }
}

/// A question on its way into a digest. Every text is preceded by its length and every list by its count, so that two
/// questions never run into the same bytes.
#[derive(Default)]
struct Question {
    hash: Sha256,
    length: usize,
}

impl Question {
    fn count(&mut self, count: usize) {
        self.hash.update((count as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.hash.update(text);
        self.length += text.len();
    }

    fn texts<const N: usize>(&mut self, texts: [&str; N]) {
        texts.into_iter().for_each(|text| self.text(text));
    }

    fn list(&mut self, list: &[String]) {
        self.count(list.len());
        list.iter().for_each(|text| self.text(text));
    }

    fn user(&mut self, user: &UserInfo) {
        self.text(&user.name);
        self.count(usize::from(user.uid.is_some()));
        self.text(user.uid.as_deref().unwrap_or_default());
        self.list(&user.groups);
        self.count(user.extra.len());
        for (key, values) in &user.extra {
            self.text(key);
            self.list(values);
        }
    }

    fn resource(&mut self, resource: &ResourceAttributes<'_>) {
        let ResourceAttributes {
            verb,
            group,
            version,
            resource,
            subresource,
            namespace,
            name,
            label_selector,
            field_selector,
        } = resource;
        self.texts([verb, group, version, resource, subresource, namespace, name]);
        let labels = label_selector.map_or(&[][..], LabelSelector::requirements);
        self.count(labels.len());
        for requirement in labels {
            self.texts([label_operator(requirement.op), &requirement.key]);
            self.list(&requirement.values);
        }
        let fields = field_selector.map_or(&[][..], FieldSelector::requirements);
        self.count(fields.len());
        for requirement in fields {
            let operator = field_operator(requirement.op);
            self.texts([operator, &requirement.path, &requirement.value]);
        }
    }
}

/// The operator's name in a review. Comparisons have none there; a review leaves them out, but the key must not.
pub(super) fn label_operator(op: LabelOp) -> &'static str {
    match op {
        LabelOp::In => "In",
        LabelOp::NotIn => "NotIn",
        LabelOp::Exists => "Exists",
        LabelOp::DoesNotExist => "DoesNotExist",
        LabelOp::GreaterThan => "Gt",
        LabelOp::LessThan => "Lt",
    }
}

/// The operator's name in a review.
pub(super) fn field_operator(op: FieldOp) -> &'static str {
    match op {
        FieldOp::Equal => "In",
        FieldOp::NotEqual => "NotIn",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_get<'a>(namespace: &'a str, name: &'a str) -> ResourceAttributes<'a> {
        ResourceAttributes {
            verb: "get",
            group: "agents.x-k8s.io",
            version: "v1beta1",
            resource: "sandboxes",
            namespace,
            name,
            ..ResourceAttributes::default()
        }
    }

    fn key(user: &UserInfo, attributes: ResourceAttributes<'_>) -> Key {
        Attributes::Resource(attributes).key(user).0
    }

    #[test]
    fn every_part_of_the_question_is_in_its_key() {
        let ann = UserInfo::new("ann", &["dev"]);
        let base = key(&ann, mk_get("a", "x"));
        assert_eq!(base, key(&ann, mk_get("a", "x")));
        let mut keys = vec![base];
        for other in [
            UserInfo::new("bob", &["dev"]),
            UserInfo::new("ann", &["dev", ""]),
            UserInfo::new("anndev", &[]),
            UserInfo {
                uid: Some(String::new()),
                ..ann.clone()
            },
            UserInfo {
                extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
                ..ann.clone()
            },
            UserInfo {
                extra: [("kv".to_owned(), vec![])].into(),
                ..ann.clone()
            },
        ] {
            keys.push(key(&other, mk_get("a", "x")));
        }
        let labels: Vec<LabelSelector> = ["a", "!a", "a=b", "a!=b", "a in (b,c)"]
            .map(|text| text.parse().unwrap())
            .into();
        let fields: FieldSelector = "metadata.name=x".parse().unwrap();
        keys.extend(labels.iter().map(|selector| {
            key(
                &ann,
                ResourceAttributes {
                    label_selector: Some(selector),
                    ..mk_get("a", "x")
                },
            )
        }));
        keys.extend([
            key(&ann, mk_get("ax", "")),
            key(&ann, mk_get("", "ax")),
            key(
                &ann,
                ResourceAttributes {
                    verb: "list",
                    ..mk_get("a", "x")
                },
            ),
            key(
                &ann,
                ResourceAttributes {
                    group: "",
                    ..mk_get("a", "x")
                },
            ),
            key(
                &ann,
                ResourceAttributes {
                    version: "v1",
                    ..mk_get("a", "x")
                },
            ),
            key(
                &ann,
                ResourceAttributes {
                    resource: "pods",
                    ..mk_get("a", "x")
                },
            ),
            key(
                &ann,
                ResourceAttributes {
                    subresource: "fork",
                    ..mk_get("a", "x")
                },
            ),
            key(
                &ann,
                ResourceAttributes {
                    field_selector: Some(&fields),
                    ..mk_get("a", "x")
                },
            ),
            Attributes::NonResource {
                verb: "get",
                path: "/metrics",
            }
            .key(&ann)
            .0,
        ]);
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(keys.iter().position(|other| other == key), Some(index));
        }
    }

    #[test]
    fn only_a_named_question_has_a_nameless_form() {
        let nameless = Attributes::Resource(mk_get("a", "x")).without_name();
        assert_eq!(nameless, Some(Attributes::Resource(mk_get("a", ""))));
        assert_eq!(Attributes::Resource(mk_get("a", "")).without_name(), None);
        assert_eq!(
            Attributes::NonResource {
                verb: "get",
                path: "/"
            }
            .without_name(),
            None
        );
    }
}
