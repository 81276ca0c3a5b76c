//! One claim as a node keeps it. Sixty-four bytes beside its key, so that a million fit a laptop.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc, time::Duration};

use compact_str::CompactString;
use jiff::Timestamp;

use super::{Options, body::EnvVar, files::Files};
use crate::api::PoolKey;

/// Milliseconds since the epoch, on the clock of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Millis(pub(super) i64);

impl Millis {
    pub(super) const FOREVER: Self = Self(i64::MAX);

    pub(super) fn after(self, delay: Duration) -> Self {
        let delay = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(delay))
    }

    /// As RFC 3339 shows it; Go's zero time stands for no end.
    pub(super) fn timestamp(self) -> Timestamp {
        Timestamp::from_millisecond(self.0).unwrap_or_else(|_| {
            Timestamp::from_second(-62_135_596_800).expect("the first second of year one")
        })
    }
}

/// The number behind an id. Never used twice in a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Number(pub(super) u64);

impl Number {
    /// `ck_…`, the id of a checkpoint; [`fmt::Display`] is the id of a sandbox.
    pub(super) fn checkpoint(self) -> String {
        format!("ck_{:016x}", self.0)
    }

    pub(super) fn parse_checkpoint(id: &str) -> Option<Self> {
        Self::parse(id, "ck_")
    }

    fn parse(id: &str, prefix: &str) -> Option<Self> {
        let digits = id.strip_prefix(prefix)?;
        let canonical = digits.len() == 16
            && digits
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(digits, 16)
            .ok()
            .filter(|_| canonical)
            .map(Self)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sb_{:016x}", self.0)
    }
}

impl FromStr for Number {
    type Err = ();

    fn from_str(id: &str) -> Result<Self, ()> {
        Self::parse(id, "sb_").ok_or(())
    }
}

/// Whose claim it is: nobody's or a tenant's, by place in the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Owner(u16);

impl Owner {
    pub(super) const ROOT: Self = Self(0);

    pub(super) fn tenant(index: usize) -> Self {
        Self(u16::try_from(index + 1).expect("options are checked for their number of tenants"))
    }

    pub(super) fn index(self) -> Option<usize> {
        (self.0 as usize).checked_sub(1)
    }

    pub(super) fn name(self, options: &Options) -> Option<&str> {
        self.index()
            .map(|index| options.tenants[index].name.as_str())
    }
}

/// What a claim is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The VM runs.
    Running,
    /// Memory on disk, VM stopped. Wakes with its deadline.
    Hibernated,
    /// Image in the store, VM gone, no deadline. Wakes with a fresh lease.
    Archived,
    /// The VM died. Wakes from disk.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum OnExpire {
    #[default]
    Destroy,
    Archive,
}

impl OnExpire {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "archive" => Self::Archive,
            _ => Self::Destroy,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Destroy => "destroy",
            Self::Archive => "archive",
        }
    }
}

#[derive(Debug)]
pub(super) struct Claim {
    pub(super) claim_ref: CompactString,
    /// Shared with the pool and with the other claims of the key.
    pub(super) key: Arc<PoolKey>,
    pub(super) claimed_at: Millis,
    pub(super) deadline: Millis,
    pub(super) lease_seconds: u32,
    pub(super) owner: Owner,
    pub(super) phase: Phase,
    pub(super) on_expire: OnExpire,
    /// What few claims have.
    pub(super) extra: Option<Box<Extra>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Extra {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) env: BTreeMap<String, EnvVar>,
    pub(super) from_checkpoint: Option<Number>,
    pub(super) failed: Option<String>,
    pub(super) files: Files,
}

impl Extra {
    /// Nothing, if there is nothing.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        let empty = self.metadata.is_empty()
            && self.env.is_empty()
            && self.from_checkpoint.is_none()
            && self.failed.is_none()
            && self.files.is_untouched();
        (!empty).then(|| Box::new(self))
    }
}

impl Claim {
    pub(super) fn is_egress(&self) -> bool {
        self.key.net == "egress"
    }

    pub(super) fn set_lease(&mut self, now: Millis, lease: Duration) {
        self.lease_seconds = u32::try_from(lease.as_secs()).unwrap_or(u32::MAX);
        self.deadline = now.after(lease);
    }

    pub(super) fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }
}

/// The lease that a request for `ttl_seconds` is granted.
pub(super) fn lease(ttl_seconds: i64) -> Duration {
    match u64::try_from(ttl_seconds) {
        Ok(0) | Err(_) => Options::DEFAULT_TTL,
        Ok(seconds) => Duration::from_secs(seconds).min(Options::MAX_TTL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_have_a_default_and_a_cap() {
        for (asked, granted) in [
            (-5, 300),
            (0, 300),
            (1, 1),
            (86_400, 86_400),
            (86_401, 86_400),
            (i64::MAX, 86_400),
        ] {
            assert_eq!(lease(asked).as_secs(), granted, "{asked}");
        }
    }

    #[test]
    fn an_id_reads_back_and_nothing_like_it_does() {
        let id = Number(0xab).to_string();
        assert_eq!(id, "sb_00000000000000ab");
        assert_eq!(id.parse(), Ok(Number(0xab)));
        for other in [
            "sb_ab",
            "ck_00000000000000ab",
            "sb_00000000000000AB",
            "sb_+0000000000000ab",
        ] {
            assert!(other.parse::<Number>().is_err(), "{other}");
        }
    }

    #[test]
    fn a_claim_is_small() {
        assert!(
            size_of::<Claim>() <= 72,
            "{} bytes a claim",
            size_of::<Claim>()
        );
    }

    #[test]
    fn no_end_prints_as_the_zero_time() {
        assert_eq!(
            Millis::FOREVER.timestamp().to_string(),
            "0001-01-01T00:00:00Z"
        );
        assert_eq!(
            Millis(1500).timestamp().to_string(),
            "1970-01-01T00:00:01.5Z"
        );
    }
}
