//! Resource versions: the position of one change in the server's single sequence of changes.

use std::{fmt, num::NonZeroU64, str::FromStr};

/// Bits of a resource version that count changes within one epoch.
const SEQUENCE_BITS: u32 = 32;

/// The position of a change: `(epoch << 32) | sequence`, decimal on the wire, always below 2^63.
///
/// The epoch rises with every start of the sequencer, so versions never go backward over a restart although nothing but
/// the epoch is stored. Within an epoch every change counts one. Clients may compare two of them as integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceVersion(NonZeroU64);

/// The text is no resource version: not a decimal integer, zero, with a leading zero, or 2^63 and above.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid resource version {0:?}: must be a positive decimal integer below 2^63")]
pub struct InvalidResourceVersion(pub String);

impl ResourceVersion {
    /// The first version of `epoch`; `None` when the epoch is 0 or needs more than 31 bits.
    pub fn first_of_epoch(epoch: u32) -> Option<Self> {
        if epoch >> 31 != 0 {
            return None;
        }
        NonZeroU64::new(u64::from(epoch) << SEQUENCE_BITS).map(Self)
    }

    /// A version from its integer; `None` for 0 and for 2^63 and above.
    pub fn from_u64(value: u64) -> Option<Self> {
        if value >> 63 != 0 {
            return None;
        }
        NonZeroU64::new(value).map(Self)
    }

    /// The integer, for arithmetic and comparison.
    pub fn as_u64(self) -> u64 {
        self.0.get()
    }

    /// The sequencer's life that this version belongs to.
    pub fn epoch(self) -> u32 {
        (self.0.get() >> SEQUENCE_BITS) as u32
    }

    /// The version of the next change. A full sequence carries into the epoch, which stays monotonic.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad_integral(true, "", itoa::Buffer::new().format(self.0.get()))
    }
}

impl FromStr for ResourceVersion {
    type Err = InvalidResourceVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidResourceVersion(text.chars().take(64).collect());
        if !text.bytes().all(|byte| byte.is_ascii_digit()) || text.starts_with('0') {
            return Err(invalid());
        }
        text.parse()
            .ok()
            .and_then(Self::from_u64)
            .ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_and_sequence_make_a_rising_integer() {
        let first = ResourceVersion::first_of_epoch(7).unwrap();
        assert_eq!(first.to_string(), "30064771072");
        assert_eq!(first.next().epoch(), 7);
        assert!(ResourceVersion::first_of_epoch(8).unwrap() > first.next());
    }

    #[test]
    fn only_canonical_decimals_parse() {
        for bad in [
            "",
            "0",
            "01",
            "-1",
            "+1",
            "1.0",
            "a",
            " 1",
            "9223372036854775808",
            "99999999999999999999999",
        ] {
            assert!(bad.parse::<ResourceVersion>().is_err(), "{bad:?}");
        }
        assert_eq!(
            "9223372036854775807"
                .parse::<ResourceVersion>()
                .unwrap()
                .as_u64(),
            u64::MAX >> 1
        );
    }
}
