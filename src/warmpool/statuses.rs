//! What was said in the statuses, so that each is written when it says something new, and not for every VM.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use super::status::{FILLED, FILLING};
use crate::api::{SandboxWarmPool, SandboxWarmPoolStatus};

/// Time between two writes of a status in which only the filling moves.
const COUNTS_APART: Duration = Duration::from_secs(1);
/// How long a pool is short before its status says so: a claim takes a warm VM and its node makes another, of which etcd need not
/// hear.
const SHORT_FOR: Duration = Duration::from_secs(5);
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
    /// Since when fewer are warm than this says.
    short_since: Option<Instant>,
    under_way: bool,
    failed: bool,
}

impl Status {
    /// Whether a status in which only the filling moved is to be written.
    fn is_count_due(&mut self, status: &SandboxWarmPoolStatus, now: Instant) -> bool {
        let is_short = status.ready_replicas < self.status.ready_replicas;
        let short_since = *self.short_since.get_or_insert(now);
        if !is_short {
            self.short_since = None;
        }
        now >= self.written + COUNTS_APART && (!is_short || now >= short_since + SHORT_FOR)
    }
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
        let known = self.statuses.get_mut(uid(pool));
        let due = match known {
            Some(known) if known.under_way => false,
            Some(known) if known.failed => now >= known.written + RETRY,
            Some(known) if known.status == *status => {
                known.short_since = None;
                false
            }
            Some(known) => tells(&known.status) != tells(status) || known.is_count_due(status, now),
            None => pool.status.as_ref() != Some(status),
        };
        if due {
            let new = Status {
                status: status.clone(),
                written: now,
                short_since: None,
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
    fn a_pool_that_is_short_for_a_moment_is_no_news() {
        let (mut said, now) = (Statuses::default(), Instant::now());
        let pool = SandboxWarmPool::default();
        let later = |seconds| now + Duration::from_secs(seconds);
        assert!(said.begin(&pool, &mk_status(40, 1), now));
        said.ended("", true);
        for (second, ready) in [(10, 39), (14, 38), (15, 40), (18, 39), (22, 37)] {
            let status = mk_status(ready, 1);
            assert!(!said.begin(&pool, &status, later(second)), "{second} s");
        }
        assert!(said.begin(&pool, &mk_status(38, 1), later(23)), "it lasts");
        said.ended("", true);
        assert!(
            said.begin(&pool, &mk_status(39, 1), later(24)),
            "what fills is told as it fills"
        );
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
