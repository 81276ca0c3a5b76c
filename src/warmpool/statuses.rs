//! What was said in the statuses, so that each is written when it says something new, and not for every VM.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use super::status::{FILLED, FILLING};
use crate::api::{SandboxWarmPool, SandboxWarmPoolStatus};

/// Time between two writes of a status in which only the filling moves: under load a pool is full and short in turn.
const COUNTS_APART: Duration = Duration::from_secs(1);
/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Every pool's last status, by uid.
#[derive(Debug, Default)]
pub(super) struct Statuses {
    statuses: HashMap<String, Status>,
}

#[derive(Debug)]
struct Status {
    status: SandboxWarmPoolStatus,
    written: Instant,
    under_way: bool,
    failed: bool,
}

impl Statuses {
    /// The pool with what was said last in place of what a watch has told of, which may be older.
    pub(super) fn overlay(&self, pool: &SandboxWarmPool) -> SandboxWarmPool {
        let said = self.statuses.get(uid(pool));
        SandboxWarmPool {
            metadata: pool.metadata.clone(),
            spec: pool.spec.clone(),
            status: said.map_or_else(|| pool.status.clone(), |said| Some(said.status.clone())),
        }
    }

    /// Whether `status` is to be written now; then it counts as under way. `pool` is as [`Statuses::overlay`] gave it.
    pub(super) fn begin(
        &mut self,
        pool: &SandboxWarmPool,
        status: &SandboxWarmPoolStatus,
        now: Instant,
    ) -> bool {
        let known = self.statuses.get(uid(pool));
        let due = match known {
            Some(known) if known.under_way => false,
            Some(known) if known.failed => now >= known.written + RETRY,
            Some(known) if known.status == *status => false,
            Some(known) => {
                tells(&known.status) != tells(status) || now >= known.written + COUNTS_APART
            }
            None => pool.status.as_ref() != Some(status),
        };
        if due {
            let new = Status {
                status: status.clone(),
                written: now,
                under_way: true,
                failed: false,
            };
            self.statuses.insert(uid(pool).to_owned(), new);
        }
        due
    }

    /// A write ended.
    pub(super) fn ended(&mut self, uid: &str, ok: bool) {
        if let Some(known) = self.statuses.get_mut(uid) {
            (known.under_way, known.failed) = (false, !ok);
        }
    }

    /// Forgets pools that are gone.
    pub(super) fn keep(&mut self, uids: &HashSet<&str>) {
        self.statuses.retain(|uid, _| uids.contains(uid.as_str()));
    }
}

pub(super) fn uid(pool: &SandboxWarmPool) -> &str {
    pool.metadata.uid.as_deref().unwrap_or_default()
}

/// What of a status is news by itself.
fn tells(status: &SandboxWarmPoolStatus) -> (Option<i64>, Vec<(&str, &str)>) {
    let conditions = status.conditions.iter();
    let conditions = conditions
        .filter(|condition| !is_filling(&condition.reason))
        .map(|condition| (condition.type_.as_str(), condition.reason.as_str()));
    (status.observed_generation, conditions.collect())
}

/// Whether the reason tells how full a pool is, and nothing that somebody would have to do something about.
pub(super) fn is_filling(reason: &str) -> bool {
    matches!(reason, FILLING | FILLED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_status(ready: i32, generation: i64) -> SandboxWarmPoolStatus {
        SandboxWarmPoolStatus {
            ready_replicas: Some(ready),
            observed_generation: Some(generation),
            ..SandboxWarmPoolStatus::default()
        }
    }

    #[test]
    fn news_is_written_at_once_and_counts_in_their_time() {
        let (mut said, now) = (Statuses::default(), Instant::now());
        let pool = SandboxWarmPool::default();
        let later = |millis| now + Duration::from_millis(millis);
        assert!(said.begin(&pool, &mk_status(1, 1), now));
        assert!(!said.begin(&pool, &mk_status(2, 1), now), "one at a time");
        said.ended("", true);
        assert!(
            !said.begin(&pool, &mk_status(1, 1), later(5_000)),
            "nothing new"
        );
        assert!(!said.begin(&pool, &mk_status(2, 1), later(100)));
        assert!(said.begin(&pool, &mk_status(2, 2), later(100)));
        said.ended("", true);
        assert!(said.begin(&pool, &mk_status(3, 2), later(1_200)));
    }

    #[test]
    fn a_failed_write_is_repeated_after_a_pause() {
        let (mut said, now) = (Statuses::default(), Instant::now());
        let (pool, status) = (SandboxWarmPool::default(), mk_status(1, 1));
        assert!(said.begin(&pool, &status, now));
        said.ended("", false);
        assert!(!said.begin(&pool, &status, now));
        assert!(said.begin(&pool, &status, now + RETRY));
    }

    #[test]
    fn what_the_object_says_already_is_not_written() {
        let mut said = Statuses::default();
        let pool = SandboxWarmPool {
            status: Some(mk_status(1, 1)),
            ..SandboxWarmPool::default()
        };
        assert!(!said.begin(&pool, &mk_status(1, 1), Instant::now()));
        said.keep(&HashSet::new());
        assert!(said.statuses.is_empty());
    }
}
