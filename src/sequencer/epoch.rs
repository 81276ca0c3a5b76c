//! The epoch: which life of the sequencer a resource version belongs to.

use crate::meta::{ResourceVersion, UnixTime};

use super::{Error, Result};

/// 2025-01-01T00:00:00Z. Epochs count seconds since then, so that one whose record is lost still rises.
const BEGIN: UnixTime = UnixTime::from_secs(1_735_689_600);

/// The epoch after the one that is stored as `stored`, and its first version.
pub(super) fn next(stored: Option<&str>, now: UnixTime) -> Result<(u32, ResourceVersion)> {
    let by_clock = u32::try_from(now.since(BEGIN).as_secs()).unwrap_or(u32::MAX);
    let epoch = match stored {
        None => by_clock.max(1),
        Some(text) => {
            let stored: u32 = text
                .trim()
                .parse()
                .map_err(|_| Error::UnreadableEpoch(text.chars().take(64).collect()))?;
            stored
                .checked_add(1)
                .ok_or(Error::Exhausted(stored))?
                .max(by_clock)
        }
    };
    let first = ResourceVersion::first_of_epoch(epoch).ok_or(Error::Exhausted(epoch))?;
    Ok((epoch, first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[track_caller]
    fn check(stored: Option<&str>, seconds_since_begin: u64, expected: u32) {
        let now = BEGIN.after(Duration::from_secs(seconds_since_begin));
        let (epoch, first) = next(stored, now).unwrap();
        assert_eq!((epoch, first.epoch()), (expected, expected));
    }

    #[test]
    fn the_epoch_rises_whatever_the_clock_says() {
        check(None, 60_000_000, 60_000_000);
        check(Some("60000000"), 60_000_000, 60_000_001);
        check(Some("60000000\n"), 60_000_500, 60_000_500);
        // The clock was ahead, or is behind.
        check(Some("70000000"), 60_000_000, 70_000_001);
        check(Some("7"), 0, 8);
        check(None, 0, 1);
    }

    #[test]
    fn an_unreadable_or_last_epoch_is_not_guessed_around() {
        for bad in ["", "x", "-1", "1.5", "99999999999"] {
            assert!(
                matches!(next(Some(bad), BEGIN), Err(Error::UnreadableEpoch(_))),
                "{bad:?}"
            );
        }
        for last in ["2147483647", "4294967295"] {
            assert!(
                matches!(next(Some(last), BEGIN), Err(Error::Exhausted(_))),
                "{last:?}"
            );
        }
    }
}
