//! The Lease as a record: who holds it, what a newcomer may do about that, and the records this process writes.

use std::{fs, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use tokio::time::Instant;

use crate::meta::{ResourceVersion, UnixTime};

use super::{Result, epoch};

/// Where the epoch stands in the Lease.
const EPOCH_ANNOTATION: &str = "sandbox.cocoonstack.io/epoch";

/// A Lease that does not say how long it lasts.
const DEFAULT_DURATION: Duration = Duration::from_secs(15);

const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
const FALLBACK_NAMESPACE: &str = "kube-system";
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Which Lease, for whom, and how patiently.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// The Lease's namespace; see [`own_namespace`].
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// Who this process is. A restarted process with the same identity takes its Lease back without waiting, so that no two
    /// processes may have one.
    pub identity: String,
    /// How long others wait after the last renewal they saw before they take over. Whole seconds. Default 15 s.
    pub duration: Duration,
    /// How long after its last renewal the holder may write. Less than `duration` by more than clocks drift and requests take.
    /// Default 10 s.
    pub renew_deadline: Duration,
    /// How often the holder renews and others look. Default 2 s.
    pub period: Duration,
}

impl LeaseOptions {
    /// The Lease `sandbox-apiserver` in `namespace`, for the server on this host and `port`.
    pub fn new(namespace: String, port: u16) -> Self {
        let host = fs::read_to_string(HOST_NAME_FILE).unwrap_or_default();
        Self {
            namespace,
            name: "sandbox-apiserver".to_owned(),
            identity: format!("{}:{port}", host.trim()),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            period: Duration::from_secs(2),
        }
    }
}

/// The namespace this process runs in, as its ServiceAccount says, else `kube-system`.
pub fn own_namespace() -> String {
    let named = fs::read_to_string(NAMESPACE_FILE).unwrap_or_default();
    match named.trim() {
        "" => FALLBACK_NAMESPACE.to_owned(),
        namespace => namespace.to_owned(),
    }
}

/// A claim on the Lease: the record to write, and the versions it entitles to once it is written.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) lease: Lease,
    pub(super) epoch: u32,
    pub(super) first: ResourceVersion,
}

/// Somebody else's Lease as it was last seen to change.
#[derive(Debug, Default)]
pub(super) struct Observed(Option<(String, Instant)>);

impl Observed {
    /// Whether the holder of `lease` may still be writing. Measured from when the record was first seen as it is, by the clock
    /// here, for as long as the record itself says.
    pub(super) fn may_be_held(&mut self, lease: &Lease, now: Instant) -> bool {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match &self.0 {
            Some((seen, since)) if *seen == version => *since,
            _ => {
                self.0 = Some((version, now));
                now
            }
        };
        now < since + duration(lease)
    }
}

/// Who holds `lease`; `None` when it was released.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref();
    holder.filter(|holder| !holder.is_empty())
}

/// The epoch as it stands in `lease`.
pub(super) fn stored_epoch(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    annotations.get(EPOCH_ANNOTATION).map(String::as_str)
}

/// The record that makes this process the holder, over `current` or as the first.
pub(super) fn claim(
    current: Option<Lease>,
    options: &LeaseOptions,
    now: UnixTime,
) -> Result<Claim> {
    let stored = current.as_ref().and_then(stored_epoch);
    let (epoch, first) = epoch::next(stored, now)?;
    let mut lease = current.unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(options.name.clone()),
            namespace: Some(options.namespace.clone()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    let changes_hands = holder(&lease) != Some(&options.identity);
    let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    lease
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(EPOCH_ANNOTATION.to_owned(), epoch.to_string());
    let now = MicroTime(jiff::Timestamp::now());
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(options.identity.clone()),
        lease_duration_seconds: i32::try_from(options.duration.as_secs()).ok(),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        lease_transitions: transitions.map_or(Some(0), |n| n.checked_add(i32::from(changes_hands))),
        ..LeaseSpec::default()
    });
    Ok(Claim {
        lease,
        epoch,
        first,
    })
}

/// The record that renews `lease`.
pub(super) fn renewed(mut lease: Lease) -> Lease {
    if let Some(spec) = &mut lease.spec {
        spec.renew_time = Some(MicroTime(jiff::Timestamp::now()));
    }
    lease
}

/// The record that gives `lease` up, for the next to take at once. The epoch stays.
pub(super) fn released(mut lease: Lease) -> Lease {
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(jiff::Timestamp::now()));
    }
    lease
}

fn duration(lease: &Lease) -> Duration {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.lease_duration_seconds)
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(DEFAULT_DURATION, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_options(identity: &str) -> LeaseOptions {
        LeaseOptions {
            identity: identity.to_owned(),
            ..LeaseOptions::new("ns".to_owned(), 443)
        }
    }

    fn mk_lease(identity: &str, version: &str) -> Lease {
        let mut lease = claim(None, &mk_options(identity), UnixTime::now())
            .unwrap()
            .lease;
        lease.metadata.resource_version = Some(version.to_owned());
        lease
    }

    #[test]
    fn a_claim_keeps_the_precondition_and_raises_the_epoch() {
        let before = mk_lease("a", "7");
        let Claim {
            lease,
            epoch,
            first,
        } = claim(Some(before.clone()), &mk_options("b"), UnixTime::now()).unwrap();
        assert_eq!(lease.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(holder(&lease), Some("b"));
        assert_eq!(stored_epoch(&lease), Some(epoch.to_string().as_str()));
        assert!(epoch > stored_epoch(&before).unwrap().parse().unwrap());
        assert_eq!(first.epoch(), epoch);
        assert_eq!(lease.spec.unwrap().lease_transitions, Some(1));

        let back = claim(Some(before), &mk_options("a"), UnixTime::now())
            .unwrap()
            .lease;
        assert_eq!(
            back.spec.unwrap().lease_transitions,
            Some(0),
            "it did not change hands"
        );
    }

    #[test]
    fn a_released_lease_has_no_holder_but_its_epoch() {
        let lease = mk_lease("a", "7");
        let epoch = stored_epoch(&lease).unwrap().to_owned();
        let released = released(lease);
        assert_eq!(holder(&released), None);
        assert_eq!(stored_epoch(&released), Some(epoch.as_str()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_counts_until_its_record_has_stood_still_for_its_duration() {
        let mut observed = Observed::default();
        let step = Duration::from_secs(10);
        for version in ["1", "2", "3"] {
            assert!(observed.may_be_held(&mk_lease("a", version), Instant::now()));
            tokio::time::advance(step).await;
        }
        assert!(observed.may_be_held(&mk_lease("a", "3"), Instant::now()));
        tokio::time::advance(step).await;
        assert!(!observed.may_be_held(&mk_lease("a", "3"), Instant::now()));
    }
}
