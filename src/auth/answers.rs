//! Answers that stay true for a while, and questions that are asked once however many wait for them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{FutureExt, future::Shared};
use parking_lot::{Mutex, RwLock};
use tokio::{sync::oneshot, time::Instant};

use super::{Error, Result};

/// Calls that may run at one time. Callers that leave do not end their call, so that the bound is here and not only on
/// requests in flight.
const MAX_RUNNING: usize = 1_024;

/// The SHA-256 of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) [u8; 32]);

/// An answer and how long it may be given again; zero for not at all.
pub(super) struct Answer<V> {
    pub(super) value: V,
    pub(super) keep: Duration,
}

/// A bounded memory of answers, with the calls that are being made for more. Errors are shared by those who wait, not kept.
pub(super) struct Answers<V> {
    // Both locks are held for a few map operations, never over an await.
    known: RwLock<Generations<V>>,
    running: Mutex<HashMap<Key, Waiting<V>, foldhash::fast::RandomState>>,
    capacity: usize,
}

type Waiting<V> = Shared<oneshot::Receiver<Result<V>>>;
type Map<V> = HashMap<Key, Known<V>, foldhash::fast::RandomState>;

/// When the young half is full, it becomes the old half, whose answers are forgotten. All answers live equally long, so that
/// this drops the ones that are closest to their end, without a list of ages.
struct Generations<V> {
    young: Map<V>,
    old: Map<V>,
}

struct Known<V> {
    value: V,
    until: Instant,
}

impl<V: Clone + Send + Sync + 'static> Answers<V> {
    /// Keeps at most `capacity` answers.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            known: RwLock::new(Generations {
                young: Map::default(),
                old: Map::default(),
            }),
            running: Mutex::default(),
            capacity,
        })
    }

    /// The answer to `key`, if it is known and still true.
    pub(super) fn get(&self, key: &Key) -> Option<V> {
        let known = self.known.read();
        let found = known.young.get(key).or_else(|| known.old.get(key))?;
        (found.until > Instant::now()).then(|| found.value.clone())
    }

    /// The answer to `key`: known, about to be known, or what `call` finds out. The call goes on when the caller leaves, since
    /// others may wait for it and its answer is kept.
    pub(super) async fn ask<F>(self: &Arc<Self>, key: Key, call: impl FnOnce() -> F) -> Result<V>
    where
        F: Future<Output = Result<Answer<V>>> + Send + 'static,
    {
        let waiting = {
            let mut running = self.running.lock();
            match running.get(&key) {
                Some(waiting) => waiting.clone(),
                None => {
                    // A call puts its answer in before it leaves `running`, so that this look misses none.
                    if let Some(value) = self.get(&key) {
                        return Ok(value);
                    }
                    if running.len() >= MAX_RUNNING {
                        return Err(Error::Overloaded);
                    }
                    let (answer_tx, answer_rx) = oneshot::channel();
                    let waiting = answer_rx.shared();
                    running.insert(key, waiting.clone());
                    tokio::spawn(self.clone().run(key, call(), answer_tx));
                    waiting
                }
            }
        };
        waiting.await.unwrap_or(Err(Error::Interrupted))
    }

    async fn run(
        self: Arc<Self>,
        key: Key,
        call: impl Future<Output = Result<Answer<V>>>,
        answer_tx: oneshot::Sender<Result<V>>,
    ) {
        let landing = Landing {
            answers: self.clone(),
            key,
        };
        let value = call.await.map(|answer| {
            self.keep(key, &answer);
            answer.value
        });
        drop(landing);
        // Nobody may be left to hear it.
        let _ = answer_tx.send(value);
    }

    fn keep(&self, key: Key, answer: &Answer<V>) {
        if answer.keep.is_zero() {
            return;
        }
        let until = Instant::now() + answer.keep;
        let mut known = self.known.write();
        if known.young.len() >= self.capacity / 2 {
            known.old = std::mem::take(&mut known.young);
        }
        known.young.insert(
            key,
            Known {
                value: answer.value.clone(),
                until,
            },
        );
    }
}

/// Takes a call out of `running`, also when it panics.
struct Landing<V> {
    answers: Arc<Answers<V>>,
    key: Key,
}

impl<V> Drop for Landing<V> {
    fn drop(&mut self) {
        self.answers.running.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const TEN_SECONDS: Duration = Duration::from_secs(10);

    struct Oracle {
        answers: Arc<Answers<u32>>,
        n_calls: Arc<AtomicU32>,
    }

    impl Oracle {
        fn new() -> Self {
            Self {
                answers: Answers::new(8),
                n_calls: Arc::default(),
            }
        }

        /// Asks; the call takes a second and answers with its own number.
        async fn ask(&self, key: u8, outcome: Result<Duration>) -> Result<u32> {
            let n_calls = self.n_calls.clone();
            self.answers
                .ask(Key([key; 32]), || async move {
                    let value = n_calls.fetch_add(1, Ordering::SeqCst) + 1;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    outcome.map(|keep| Answer { value, keep })
                })
                .await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn equal_questions_are_asked_once() {
        let oracle = Oracle::new();
        let asking = (0..50).map(|_| oracle.ask(1, Ok(TEN_SECONDS)));
        let answers = futures::future::join_all(asking).await;
        assert!(answers.into_iter().all(|answer| matches!(answer, Ok(1))));
        assert_eq!(oracle.answers.get(&Key([1; 32])), Some(1));
        assert!(oracle.answers.running.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_with_its_time() {
        let oracle = Oracle::new();
        assert_eq!(oracle.ask(1, Ok(TEN_SECONDS)).await.unwrap(), 1);
        tokio::time::advance(TEN_SECONDS - Duration::from_millis(1)).await;
        assert_eq!(oracle.ask(1, Ok(TEN_SECONDS)).await.unwrap(), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(oracle.ask(1, Ok(TEN_SECONDS)).await.unwrap(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_and_fleeting_answers_are_not_kept() {
        let oracle = Oracle::new();
        assert!(oracle.ask(1, Err(Error::Overloaded)).await.is_err());
        assert_eq!(oracle.ask(1, Ok(Duration::ZERO)).await.unwrap(), 2);
        assert_eq!(oracle.ask(1, Ok(TEN_SECONDS)).await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_outlives_the_caller_that_left() {
        let oracle = Oracle::new();
        let left = tokio::time::timeout(Duration::from_millis(10), oracle.ask(1, Ok(TEN_SECONDS)));
        assert!(left.await.is_err());
        assert_eq!(oracle.ask(1, Ok(TEN_SECONDS)).await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_panics_is_an_error_and_is_asked_again() {
        let oracle = Oracle::new();
        let broken = oracle
            .answers
            .ask(Key([1; 32]), || async { panic!("on purpose") });
        assert!(matches!(broken.await, Err(Error::Interrupted)));
        assert_eq!(oracle.ask(1, Ok(TEN_SECONDS)).await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded_and_forgets_the_oldest_first() {
        let oracle = Oracle::new();
        for key in 0..100 {
            oracle
                .ask(key, Ok(Duration::from_secs(1_000)))
                .await
                .unwrap();
            let known = oracle.answers.known.read();
            assert!(known.young.len() + known.old.len() <= 8);
        }
        for recent in 96..100 {
            assert!(oracle.answers.get(&Key([recent; 32])).is_some(), "{recent}");
        }
        assert_eq!(oracle.answers.get(&Key([0; 32])), None);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_calls_than_the_bound_run() {
        let answers = Answers::<u32>::new(8);
        for index in 0..=MAX_RUNNING {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&(index as u64).to_le_bytes());
            let asked = answers.ask(Key(key), std::future::pending).now_or_never();
            assert_eq!(asked.is_some(), index == MAX_RUNNING);
        }
    }
}
