//! Clocks of nodes, and the times that they tell.
//!
//! The `Date` of an answer is what the node's clock showed at some moment between the request and the answer's head, cut to the
//! second. So each answer bounds the clock's offset from both sides, a quick one closely and a slow one loosely, and no round
//! trip has to be judged.

use std::{fmt, time::Duration};

use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use serde::{Deserialize, Serialize};

use crate::meta::UnixTime;

/// A clock that is off by no more is right, and an offset that is wrong by no more stays as it is: a fleet whose clocks are
/// kept is never shifted, and what users see does not move with the jitter of a clock.
const TOLERANCE_MS: i64 = 5_000;

/// The last second of the year 9999.
const LAST: i64 = 253_402_300_799;

/// A time by the clock of a node, which may be off. What it is by ours, only the node's [`ClockOffset`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeTime(UnixTime);

/// How far a node's clock is ahead of this machine's, in whole seconds; zero for one that is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset {
    seconds: i64,
}

/// How far a clock may be ahead by one answer, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    least: i64,
    most: i64,
}

impl NodeTime {
    /// The time that a node told.
    pub const fn told(time: UnixTime) -> Self {
        Self(time)
    }
}

impl fmt::Display for NodeTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ClockOffset {
    /// What our clock shows when the node's shows `time`.
    pub fn ours(self, time: NodeTime) -> UnixTime {
        let ours = time.0.as_secs().saturating_sub(self.seconds);
        // Behind the last time that can be told lies none: the end of time stays that.
        UnixTime::from_secs(ours.min(LAST))
    }

    /// What the node's clock shows when ours shows `time`.
    pub fn theirs(self, time: UnixTime) -> NodeTime {
        NodeTime(UnixTime::from_secs(
            time.as_secs().saturating_add(self.seconds),
        ))
    }

    /// Seconds that the node's clock is ahead; below zero it is behind.
    pub fn as_secs(self) -> i64 {
        self.seconds
    }

    /// Whether the node's clock is right.
    pub fn is_zero(self) -> bool {
        self.seconds == 0
    }

    /// Whether the node's clock may show `shown` when ours shows `now`. Says less than an answer: how long `shown` was on its
    /// way is unknown.
    pub fn explains(self, shown: NodeTime, now: UnixTime) -> bool {
        let apart = shown.0.as_secs().abs_diff(self.theirs(now).0.as_secs());
        apart <= TOLERANCE_MS.unsigned_abs() / 1_000
    }

    /// Takes in what an answer says. Whether the offset is another one now.
    pub(super) fn learn(&mut self, bounds: Bounds) -> bool {
        let used = self.seconds.saturating_mul(1_000);
        let (least, most) = (
            bounds.least.saturating_sub(TOLERANCE_MS),
            bounds.most.saturating_add(TOLERANCE_MS),
        );
        let is_possible = (least..=most).contains(&used);
        if is_possible {
            return false;
        }
        *self = bounds.middle();
        true
    }
}

impl Bounds {
    /// By an answer with this `Date`, whose head was there at `now` and had taken so long from the request on. `None` without a
    /// date.
    pub(super) fn of(date: &http::HeaderValue, took: Duration, now: Timestamp) -> Option<Self> {
        let shown = DateTimeParser::new().parse_timestamp(date).ok()?;
        let (shown, now) = (shown.as_second() * 1_000, now.as_millisecond());
        let took = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        Some(Self {
            least: shown - now,
            most: (shown + 1_000 - now).saturating_add(took),
        })
    }

    fn middle(self) -> ClockOffset {
        let middle = self.least.midpoint(self.most);
        let seconds = match middle.abs() <= TOLERANCE_MS {
            true => 0,
            false => (middle + 500).div_euclid(1_000),
        };
        ClockOffset { seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    /// What an answer says that took so long, of a node whose clock is so far ahead, in milliseconds. The node answered half-way.
    fn heard(ahead: i64, took: u64) -> Bounds {
        let shown = Timestamp::from_millisecond(NOW + ahead - took as i64 / 2).unwrap();
        let date = jiff::fmt::rfc2822::DateTimePrinter::new();
        let date = date.timestamp_to_rfc9110_string(&shown).unwrap();
        let now = Timestamp::from_millisecond(NOW).unwrap();
        let took = Duration::from_millis(took);
        Bounds::of(&date.try_into().unwrap(), took, now).unwrap()
    }

    /// The offsets that are used after each answer.
    #[track_caller]
    fn check(answers: impl IntoIterator<Item = (i64, u64)>, expected: &[i64]) {
        let mut offset = ClockOffset::default();
        let used = answers.into_iter().map(|(ahead, took)| {
            let (before, bounds) = (offset, heard(ahead, took));
            assert!(bounds.least <= ahead && ahead <= bounds.most, "{bounds:?}");
            assert_eq!(offset.learn(bounds), offset != before);
            offset.as_secs()
        });
        assert_eq!(used.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_clock_that_is_kept_is_right() {
        for jitter in (-4_400..=4_400).step_by(137) {
            check([(jitter, 3), (-jitter, 800), (jitter, 30_000)], &[0, 0, 0]);
        }
    }

    #[test]
    fn a_clock_that_is_off_is_known_to_a_second() {
        for ahead in [3_600_000, -3_600_000, 7_300, -7_300, 1_800_000_000] {
            for cut in [0, 1, 333, 500, 999] {
                let mut offset = ClockOffset::default();
                assert!(offset.learn(heard(ahead + cut, 2)));
                let wrong = offset.as_secs() * 1_000 - (ahead + cut);
                assert!(wrong.abs() <= 1_000, "{offset:?} for {}", ahead + cut);
            }
        }
    }

    #[test]
    fn jitter_moves_no_offset() {
        let jitter = [2_000, -2_000, 1_700, -1_300, 2_000, -2_000];
        let answers = jitter.map(|ms| (3_600_000 + ms, 4));
        check(answers, &[3_602; 6]);
    }

    #[test]
    fn a_step_is_seen_at_once_either_way() {
        let answers = [(0, 2), (3_600_000, 2), (3_600_000, 2), (0, 2), (-60_000, 2)];
        check(answers, &[0, 3_600, 3_600, 0, -60]);
    }

    #[test]
    fn a_slow_answer_says_no_more_than_it_knows() {
        // Late by any part of the way, it never moves a right clock.
        check([(0, 60_000), (3_000, 60_000)], &[0, 0]);
        // What it knows of a wrong one counts until a quick one knows better.
        let mut offset = ClockOffset::default();
        let shown = heard(3_600_000, 0);
        let loose = Bounds {
            most: shown.most + 30_000,
            ..shown
        };
        assert!(offset.learn(loose));
        assert!(offset.learn(shown));
        assert!((3_600..=3_601).contains(&offset.as_secs()), "{offset:?}");
    }

    #[test]
    fn times_go_from_one_clock_to_the_other_and_back() {
        let offset = heard(-3_600_000, 2).middle();
        let time = UnixTime::from_secs(1_000_000);
        assert_eq!(offset.theirs(time), NodeTime(UnixTime::from_secs(996_400)));
        assert_eq!(offset.ours(offset.theirs(time)), time);
        assert!(offset.explains(NodeTime(UnixTime::from_secs(996_404)), time));
        assert!(!offset.explains(NodeTime(time), time));
    }

    #[test]
    fn what_is_no_date_says_nothing() {
        let now = Timestamp::from_millisecond(NOW).unwrap();
        for text in ["", "yesterday", "2027-01-15T08:00:00Z"] {
            let date = text.try_into().unwrap();
            assert_eq!(Bounds::of(&date, Duration::ZERO, now), None, "{text}");
        }
        // Any year that a clock may show.
        for text in [
            "Thu, 01 Jan 1970 00:00:01 GMT",
            "Thu, 31 Dec 9998 23:59:59 GMT",
        ] {
            let bounds = Bounds::of(&text.try_into().unwrap(), Duration::MAX, now);
            bounds.unwrap().middle().ours(NodeTime(UnixTime::now()));
            ClockOffset::default().learn(bounds.unwrap());
        }
    }

    #[test]
    fn the_end_of_time_is_no_later_by_another_clock() {
        let behind = heard(-3_600_000, 2).middle();
        let end = NodeTime(UnixTime::from_secs(LAST));
        assert_eq!(behind.ours(end).to_string(), "9999-12-31T23:59:59Z");
    }
}
