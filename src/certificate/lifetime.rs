//! From when to when a certificate serves, and when it is to be renewed.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use x509_parser::certificate::X509Certificate;

/// How far back validity starts, for clients whose clock is behind. It is no part of the life.
const CLOCK_SLACK: Duration = Duration::from_secs(3_600);

/// The life of a certificate: from when it was made until it is not valid any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) begins: SystemTime,
    pub(super) ends: SystemTime,
}

impl Lifetime {
    pub(super) fn new(now: SystemTime, duration: Duration) -> Self {
        Self {
            begins: now,
            ends: now + duration,
        }
    }

    /// The life of a certificate that was made here.
    pub(super) fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        let time = |timestamp: i64| {
            SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(timestamp).unwrap_or(0))
        };
        Self {
            begins: time(validity.not_before.timestamp()) + CLOCK_SLACK,
            ends: time(validity.not_after.timestamp()),
        }
    }

    /// What the certificate says.
    pub(super) fn validity(&self) -> Range<SystemTime> {
        self.begins - CLOCK_SLACK..self.ends
    }

    /// When to renew: with two thirds of the life over there is a third left to try again in.
    pub(super) fn renewal(&self) -> SystemTime {
        self.begins + self.length() * 2 / 3
    }

    pub(super) fn is_due(&self, now: SystemTime) -> bool {
        self.renewal() <= now
    }

    /// Whether it is valid. One that was made by a clock that was ahead may not be yet, and nobody takes it until it is.
    pub(super) fn is_valid_at(&self, now: SystemTime) -> bool {
        self.validity().contains(&now)
    }

    pub(super) fn is_over(&self, now: SystemTime) -> bool {
        self.ends <= now
    }

    /// Whether less than a sixth of the life is left: half of the time for renewals went by without one.
    pub(super) fn is_ending(&self, now: SystemTime) -> bool {
        self.ends <= now + self.length() / 6
    }

    fn length(&self) -> Duration {
        self.ends.duration_since(self.begins).unwrap_or_default()
    }
}

/// In whole seconds since 1970, as metrics tell times.
pub(super) fn timestamp(time: SystemTime) -> i64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn at(seconds: u64) -> SystemTime {
        NOW + Duration::from_secs(1_000_000 + seconds)
    }

    #[test]
    fn a_certificate_is_due_at_two_thirds_and_alarming_at_five_sixths() {
        let life = Lifetime::new(at(0), Duration::from_secs(600));
        for (seconds, due, ending, over) in [
            (0, false, false, false),
            (399, false, false, false),
            (400, true, false, false),
            (499, true, false, false),
            (500, true, true, false),
            (599, true, true, false),
            (600, true, true, true),
        ] {
            let now = at(seconds);
            let found = (life.is_due(now), life.is_ending(now), life.is_over(now));
            assert_eq!(found, (due, ending, over), "after {seconds} s");
        }
    }

    #[test]
    fn what_a_clock_made_that_was_ahead_by_more_than_the_slack_is_not_valid_yet() {
        let hour = Duration::from_secs(3_600);
        let life = Lifetime::new(at(0) + hour * 8, hour);
        for (hours, expected) in [(0, false), (6, false), (7, true), (8, true), (9, false)] {
            let now = at(0) + hour * hours;
            assert_eq!(life.is_valid_at(now), expected, "after {hours} h");
        }
    }

    #[test]
    fn a_life_that_ends_before_it_begins_is_due_and_over() {
        let life = Lifetime {
            begins: at(10),
            ends: at(5),
        };
        assert!(life.is_due(at(10)) && life.is_over(at(10)));
    }
}
