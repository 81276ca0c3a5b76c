//! The CA as a Secret keeps it, and what is to be done about what is found there.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::api::ObjectMeta;

use super::{Error, Options, Result, authority::Authority, bundle::Bundle, lifetime::Lifetime};
use crate::serving::PemPair;

/// `kubernetes.io/tls` asks for these two. The pair is the CA's: nothing that is served is kept.
const TYPE: &str = "kubernetes.io/tls";
const CERTIFICATE: &str = "tls.crt";
const PRIVATE_KEY: &str = "tls.key";
/// What clients trust: the CA, and those before it that have not ended.
pub(super) const BUNDLE: &str = "ca.crt";

/// A name to try a CA's key by. Not those that are asked for: a Secret is not to blame for a name that cannot be verified.
const ANY_NAME: &str = "localhost";

/// Who made an object, by the label that Kubernetes recommends for it. A Secret without it is somebody else's.
pub(super) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "sandbox-apiserver");

/// A CA, and what clients are to trust as long as it issues.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) authority: Arc<Authority>,
    pub(super) bundle: Bundle,
}

/// What is kept.
#[derive(Debug)]
pub(super) enum Found {
    /// There is no Secret.
    Nothing,
    /// Its Secret is somebody else's.
    Foreign,
    /// It was made here, and no CA can be made of it any more.
    Spoilt(Error),
    /// It may have ended.
    Kept(Kept),
}

/// What is to be done about what was found.
#[derive(Debug)]
pub(super) enum Step {
    /// Serve by it.
    Use(Kept),
    /// Make a new CA, beside which these are trusted.
    Make {
        /// What was trusted until now.
        trusted: Bundle,
        /// For the log.
        reason: String,
        /// What to serve by when that fails.
        otherwise: Option<Kept>,
    },
    /// The holder of the Lease will make one.
    Wait,
}

impl Kept {
    /// A new CA, beside which `trusted` stays trusted.
    pub(super) fn new(authority: Authority, trusted: Bundle) -> Self {
        Self {
            bundle: Bundle::of(&authority).and(trusted),
            authority: Arc::new(authority),
        }
    }

    /// The bundle without what has ended since.
    pub(super) fn bundle_at(&self, now: SystemTime) -> Bundle {
        Bundle::of(&self.authority).and(self.bundle.clone().valid_at(now))
    }

    /// Whether nothing that it issues can be verified before some time has gone by.
    fn is_early(&self, now: SystemTime) -> bool {
        let lifetime = self.authority.lifetime;
        !lifetime.is_valid_at(now) && !lifetime.is_over(now)
    }

    fn is_due(&self, now: SystemTime) -> bool {
        self.authority.lifetime.is_due(now) || self.is_early(now)
    }

    /// The Secret that keeps it, in the place of `before`, if nobody has changed that since.
    pub(super) fn to_secret(&self, options: &Options, before: Option<&Secret>) -> Secret {
        let pair = self.authority.pair();
        let data = [
            (CERTIFICATE, pair.certificate),
            (PRIVATE_KEY, pair.private_key),
            (BUNDLE, self.bundle.to_pem()),
        ];
        let mut metadata = before.map_or_else(ObjectMeta::default, |secret| ObjectMeta {
            managed_fields: None,
            ..secret.metadata.clone()
        });
        metadata.name = Some(options.secret.clone());
        metadata.namespace = Some(options.namespace.clone());
        let (label, value) = MANAGED_BY;
        let labels = metadata.labels.get_or_insert_default();
        labels.insert(label.to_owned(), value.to_owned());
        Secret {
            metadata,
            // Cannot be changed, so one that was there keeps its own.
            type_: before.map_or_else(|| Some(TYPE.to_owned()), |secret| secret.type_.clone()),
            data: Some(
                data.map(|(key, pem)| (key.to_owned(), ByteString(pem.into())))
                    .into(),
            ),
            ..Secret::default()
        }
    }
}

impl Found {
    pub(super) fn of(secret: Option<&Secret>, now: SystemTime) -> Self {
        let Some(secret) = secret else {
            return Self::Nothing;
        };
        let (label, value) = MANAGED_BY;
        let labels = secret.metadata.labels.as_ref();
        if labels
            .and_then(|labels| labels.get(label))
            .map(String::as_str)
            != Some(value)
        {
            return Self::Foreign;
        }
        let empty = BTreeMap::new();
        match read(secret.data.as_ref().unwrap_or(&empty), now) {
            Ok(kept) => Self::Kept(kept),
            Err(error) => Self::Spoilt(error),
        }
    }

    /// What to do about it. Only who `leads` makes a CA; everybody else takes what there is. `served` is by what this process
    /// serves: of a Secret that is spoilt it is what is left, while one that was deleted is to be forgotten.
    pub(super) fn step(
        self,
        leads: bool,
        now: SystemTime,
        options: &Options,
        served: Option<&Kept>,
    ) -> Result<Step> {
        let make = |trusted, reason: &str, otherwise| Step::Make {
            trusted,
            reason: reason.to_owned(),
            otherwise,
        };
        Ok(match self {
            Self::Foreign => {
                return Err(Error::Foreign {
                    secret: options.secret_path(),
                });
            }
            Self::Kept(kept) if !kept.is_due(now) => Step::Use(kept),
            Self::Kept(kept) if !leads && !kept.is_early(now) => Step::Use(kept),
            _ if !leads => Step::Wait,
            Self::Nothing => make(Bundle::default(), "there is none", None),
            Self::Spoilt(error) => {
                let served = served.filter(|it| it.authority.lifetime.is_valid_at(now));
                let trusted = served.map(|it| it.bundle.clone()).unwrap_or_default();
                make(trusted.valid_at(now), &error.to_string(), served.cloned())
            }
            Self::Kept(kept) => {
                let reason = match kept.is_early(now) {
                    true => "the one before is of a clock that was ahead, and not valid yet",
                    false => "two thirds of the life of the one before are over",
                };
                make(kept.bundle.clone().valid_at(now), reason, Some(kept))
            }
        })
    }
}

fn read(data: &BTreeMap<String, ByteString>, now: SystemTime) -> Result<Kept> {
    let bytes = |key| data.get(key).map(|value: &ByteString| value.0.as_slice());
    let text = |key| {
        let bytes = bytes(key).unwrap_or_default();
        String::from_utf8(bytes.to_vec()).map_err(|_| Error::Unusable("it is no text"))
    };
    let pair = PemPair {
        certificate: text(CERTIFICATE)?,
        private_key: text(PRIVATE_KEY)?,
    };
    let authority = Authority::from_pem(&pair)?;
    let Lifetime { begins, ends } = authority.lifetime;
    // One of a clock that was ahead is tried as of its beginning.
    let valid = now.max(begins);
    if let Ok(left) = ends.duration_since(valid) {
        // Is the key the certificate's? One that was spoilt is better found now than when it is needed.
        authority.issue(&[ANY_NAME], valid, left)?;
    }
    let bundle = Bundle::parse(bytes(BUNDLE).unwrap_or_default(), now);
    Ok(Kept::new(authority, bundle))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::serving::CertificateAuthority;

    const DAY: Duration = Duration::from_secs(86_400);
    const NAMES: [&str; 2] = ["x.y.svc", "127.0.0.1"];

    fn mk_options() -> Options {
        Options {
            namespace: "y".to_owned(),
            service: "x".to_owned(),
            secret: "ca".to_owned(),
            names: Vec::new(),
            api_services: Vec::new(),
            certificate_duration: DAY,
            ca_duration: DAY * 30,
        }
    }

    fn mk_kept(now: SystemTime) -> Kept {
        let authority = Authority::new(now, DAY * 30).unwrap();
        Kept::new(authority, Bundle::default())
    }

    fn mk_secret(kept: &Kept) -> Secret {
        let mut secret = kept.to_secret(&mk_options(), None);
        secret.metadata.resource_version = Some("7".to_owned());
        secret
    }

    fn set(secret: &mut Secret, key: &str, value: impl Into<Vec<u8>>) {
        let data = secret.data.as_mut().unwrap();
        data.insert(key.to_owned(), ByteString(value.into()));
    }

    fn step(secret: Option<&Secret>, leads: bool, now: SystemTime) -> Result<Step> {
        Found::of(secret, now).step(leads, now, &mk_options(), None)
    }

    /// That a Secret like this is given up for a new CA, and why.
    #[track_caller]
    fn check_replaced(change: impl FnOnce(&mut Secret), expected: &str) {
        let now = SystemTime::now();
        let mut secret = mk_secret(&mk_kept(now));
        change(&mut secret);
        match step(Some(&secret), true, now) {
            Ok(Step::Make {
                trusted, reason, ..
            }) => {
                assert!(reason.contains(expected), "{reason}");
                assert_eq!(trusted, Bundle::default());
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(step(Some(&secret), false, now), Ok(Step::Wait)));
    }

    #[test]
    fn a_ca_comes_back_from_its_secret_as_it_went_in() {
        let now = SystemTime::now();
        let kept = mk_kept(now);
        let secret = mk_secret(&kept);
        let Ok(Step::Use(back)) = step(Some(&secret), true, now) else {
            panic!("it is used");
        };
        assert_eq!(back.bundle, kept.bundle);
        assert_eq!(back.authority.pair(), kept.authority.pair());
        let lives = [&back, &kept].map(|it| timestamps(it.authority.lifetime));
        assert_eq!(lives[0], lives[1]);
        // Clients of the one verify what the other issues.
        let issued = back.authority.issue(&NAMES, now, DAY).unwrap();
        assert_eq!(
            timestamps(issued.lifetime).1 - timestamps(issued.lifetime).0,
            86_400
        );
    }

    fn timestamps(lifetime: super::super::lifetime::Lifetime) -> (i64, i64) {
        use super::super::lifetime::timestamp;
        (timestamp(lifetime.begins), timestamp(lifetime.ends))
    }

    #[test]
    fn two_thirds_through_a_successor_is_made_beside_which_the_ca_stays_trusted() {
        let now = SystemTime::now();
        let kept = mk_kept(now);
        let secret = mk_secret(&kept);
        assert!(matches!(
            step(Some(&secret), true, now + DAY * 19),
            Ok(Step::Use(_))
        ));
        let later = now + DAY * 21;
        assert!(matches!(
            step(Some(&secret), false, later),
            Ok(Step::Use(_))
        ));
        let Ok(Step::Make {
            trusted, otherwise, ..
        }) = step(Some(&secret), true, later)
        else {
            panic!("it is replaced");
        };
        assert!(otherwise.is_some(), "it is still good");
        let next = Kept::new(Authority::new(later, DAY * 30).unwrap(), trusted);
        let both = Bundle::of(&next.authority).and(kept.bundle.clone());
        assert_eq!(next.bundle, both);

        let replaced = next.to_secret(&mk_options(), Some(&secret));
        assert_eq!(replaced.metadata.resource_version.as_deref(), Some("7"));
        let bundle_at = |now| match step(Some(&replaced), true, now) {
            Ok(Step::Use(kept)) => kept.bundle,
            other => panic!("{other:?}"),
        };
        assert_eq!(bundle_at(now + DAY * 29), both);
        assert_eq!(
            bundle_at(now + DAY * 31),
            Bundle::of(&next.authority),
            "it has ended"
        );
    }

    #[test]
    fn one_that_has_ended_is_replaced_and_not_trusted_any_more() {
        let now = SystemTime::now();
        let secret = mk_secret(&mk_kept(now));
        let Ok(Step::Make { trusted, .. }) = step(Some(&secret), true, now + DAY * 31) else {
            panic!("it is replaced");
        };
        assert_eq!(trusted, Bundle::default());
    }

    #[test]
    fn one_of_a_clock_that_was_ahead_is_replaced_and_trusted_in_its_time() {
        let now = SystemTime::now();
        let early = mk_kept(now + DAY);
        let secret = mk_secret(&early);
        let Ok(Step::Make {
            trusted,
            reason,
            otherwise: Some(before),
        }) = step(Some(&secret), true, now)
        else {
            panic!("it is replaced");
        };
        assert!(reason.contains("ahead"), "{reason}");
        assert_eq!(trusted, early.bundle);
        assert_eq!(before.authority.pair(), early.authority.pair());
        // Who waits for the Lease serves nothing that cannot be verified.
        assert!(matches!(step(Some(&secret), false, now), Ok(Step::Wait)));
        let in_its_time = step(Some(&secret), true, now + DAY);
        assert!(matches!(in_its_time, Ok(Step::Use(_))), "{in_its_time:?}");
    }

    #[test]
    fn what_is_served_stays_trusted_when_its_secret_is_spoilt_and_not_when_it_is_deleted() {
        let now = SystemTime::now();
        let kept = mk_kept(now);
        let mut spoilt = mk_secret(&kept);
        spoilt.data = None;
        let made = |secret, now| match Found::of(secret, now).step(
            true,
            now,
            &mk_options(),
            Some(&kept),
        ) {
            Ok(Step::Make {
                trusted, otherwise, ..
            }) => (trusted, otherwise.is_some()),
            other => panic!("{other:?}"),
        };
        assert_eq!(made(Some(&spoilt), now), (kept.bundle.clone(), true));
        assert_eq!(made(None, now), (Bundle::default(), false));
        let after = now + DAY * 31;
        assert_eq!(made(Some(&spoilt), after), (Bundle::default(), false));
    }

    #[test]
    fn a_secret_of_somebody_else_is_never_written_to() {
        let now = SystemTime::now();
        let mut secret = mk_secret(&mk_kept(now));
        secret.metadata.labels =
            Some([("app.kubernetes.io/managed-by".to_owned(), "Helm".to_owned())].into());
        for leads in [true, false] {
            let refused = step(Some(&secret), leads, now);
            assert!(
                matches!(&refused, Err(Error::Foreign { secret }) if secret == "y/ca"),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_spoilt_secret_is_replaced() {
        let now = SystemTime::now();
        check_replaced(|secret| secret.data = None, "not PEM");
        check_replaced(
            |secret| set(secret, PRIVATE_KEY, "words"),
            "cannot be issued",
        );
        check_replaced(|secret| set(secret, CERTIFICATE, [0xff]), "no text");
        let other = mk_kept(now).authority.pair();
        check_replaced(
            |secret| set(secret, PRIVATE_KEY, other.private_key),
            "cannot be verified",
        );
        let leaf = CertificateAuthority::new("x").unwrap();
        let leaf = leaf.server_certificate(&["x"]).unwrap();
        let PemPair {
            certificate,
            private_key,
        } = leaf;
        check_replaced(
            |secret| {
                set(secret, CERTIFICATE, certificate);
                set(secret, PRIVATE_KEY, private_key);
            },
            "no CA",
        );
    }

    #[test]
    fn the_ca_itself_is_trusted_whatever_the_bundle_says() {
        let now = SystemTime::now();
        let kept = mk_kept(now);
        let mut secret = mk_secret(&kept);
        set(&mut secret, BUNDLE, "words");
        let Ok(Step::Use(back)) = step(Some(&secret), true, now) else {
            panic!("it is used");
        };
        assert_eq!(back.bundle, kept.bundle);
    }

    #[test]
    fn keys_never_print() {
        let kept = mk_kept(SystemTime::now());
        assert!(!format!("{kept:?}").contains("PRIVATE"));
    }
}
