//! The lengths of leases, as daemons take and give them.

use std::time::Duration;

use crate::{meta::UnixTime, sandboxd::ClaimReply};

/// The lease a daemon gives when none is asked for.
const DEFAULT: Duration = Duration::from_secs(300);
/// The longest lease that a daemon gives.
pub const LONGEST: Duration = Duration::from_secs(86_400);
/// The longest that is asked for. A daemon cuts what is too long, but counts in nanoseconds: of some centuries it makes
/// nonsense.
pub(super) const LONGEST_ASKED: Duration = Duration::from_secs(i32::MAX as u64);

/// The lease to ask for: whole seconds, rounded up; zero, the daemon's default, only for none.
pub(super) fn ttl_seconds(ttl: Option<Duration>) -> u64 {
    let Some(ttl) = ttl else { return 0 };
    let ttl = ttl.min(LONGEST_ASKED);
    (ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).max(1)
}

/// The lease that is given to whoever asks for `ttl`.
pub(super) fn granted(ttl: Option<Duration>) -> Duration {
    let asked = |ttl| Duration::from_secs(ttl_seconds(Some(ttl)));
    ttl.map_or(DEFAULT, asked).min(LONGEST)
}

/// When the node made the claim: the lease's end less its length. An answer does not say it, and every later reading of the node
/// does.
pub(super) fn claimed_at(reply: &ClaimReply, ttl: Option<Duration>) -> UnixTime {
    let lease = granted(ttl);
    match reply.deadline {
        Some(deadline) => {
            UnixTime::from_secs(deadline.as_secs() - i64::try_from(lease.as_secs()).unwrap_or(0))
        }
        None => UnixTime::now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_asked_for_in_seconds_that_a_daemon_can_count() {
        let check = |ttl, expected| assert_eq!(ttl_seconds(ttl), expected, "{ttl:?}");
        check(None, 0);
        check(Some(Duration::ZERO), 1);
        check(Some(Duration::from_millis(1_001)), 2);
        check(Some(Duration::from_secs(90_000)), 90_000);
        check(Some(Duration::MAX), i32::MAX as u64);
        assert_eq!(granted(None), DEFAULT);
        assert_eq!(granted(Some(Duration::MAX)), LONGEST);
    }
}
