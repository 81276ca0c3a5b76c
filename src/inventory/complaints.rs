//! What was complained about lately, so that a bad publisher fills no log.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use compact_str::CompactString;

/// A complaint is repeated after this.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Complaints remembered at once. Beyond it new ones stay unsaid until old ones may be repeated; the metrics count on.
const MAX_REMEMBERED: usize = 4_096;

/// What was complained about lately.
#[derive(Debug, Default)]
pub(super) struct Complaints(HashMap<(CompactString, &'static str), Instant>);

impl Complaints {
    /// Whether to say it now: once a subject and reason in ten minutes.
    pub(super) fn is_due(&mut self, subject: &str, reason: &'static str, now: Instant) -> bool {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < AGAIN_AFTER;
        if self.0.len() >= MAX_REMEMBERED {
            self.0.retain(|_, at| is_recent(at));
        }
        let key = (subject.into(), reason);
        if self.0.get(&key).is_some_and(is_recent) || self.0.len() >= MAX_REMEMBERED {
            return false;
        }
        self.0.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_subject_and_reason_until_it_is_old() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        assert!(complaints.is_due("a", "x", now));
        assert!(!complaints.is_due("a", "x", now));
        assert!(complaints.is_due("a", "y", now) && complaints.is_due("b", "x", now));
        assert!(complaints.is_due("a", "x", now + AGAIN_AFTER));
    }

    #[test]
    fn a_flood_of_names_is_bounded() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        for n in 0..10_000 {
            complaints.is_due(&format!("n{n}"), "x", now);
        }
        assert_eq!(complaints.0.len(), MAX_REMEMBERED);
        assert!(complaints.is_due("late", "x", now + AGAIN_AFTER));
        assert_eq!(complaints.0.len(), 1);
    }
}
