//! Calls that several clients may ask for at once and that are made once.

use std::{hash::Hash, sync::Arc};

use dashmap::DashMap;
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use tokio_util::task::TaskTracker;

use super::{Error, Result};

type Call<T> = Shared<BoxFuture<'static, Result<T>>>;

/// Calls under way, each with a word for what it does. Each was begun by a request
/// and may outlast it: who begins long ones bounds them.
pub(super) struct Joint<K: Eq + Hash, T: Clone>(Arc<DashMap<K, (&'static str, Call<T>)>>);

impl<K: Eq + Hash, T: Clone> Default for Joint<K, T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// A call among those under way, taken away when dropped: also by a panic.
struct Entry<K: Eq + Hash, T: Clone> {
    calls: Arc<DashMap<K, (&'static str, Call<T>)>>,
    key: K,
}

impl<K: Eq + Hash, T: Clone> Drop for Entry<K, T> {
    fn drop(&mut self) {
        self.calls.remove(&self.key);
    }
}

impl<K, T> Joint<K, T>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// The result of the call under `key`: the one that is under way, or the one that `begin` makes. An error names one that is
    /// under way and does something else.
    ///
    /// The call runs on its own task, so that dropping the returned future does not stop it.
    pub(super) fn join<F>(
        &self,
        tasks: &TaskTracker,
        key: K,
        what: &'static str,
        begin: impl FnOnce() -> F,
    ) -> Result<Call<T>, &'static str>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        use dashmap::Entry as Known;
        match self.0.entry(key.clone()) {
            Known::Occupied(call) => match call.get() {
                (known, call) if *known == what => Ok(call.clone()),
                (other, _) => Err(other),
            },
            Known::Vacant(place) => {
                let call = begin();
                let entry = Entry {
                    calls: self.0.clone(),
                    key,
                };
                let task = tasks.spawn(async move {
                    let _entry = entry;
                    call.await
                });
                let joined = task
                    .map(|result| result.unwrap_or(Err(Error::Ending)))
                    .boxed()
                    .shared();
                place.insert((what, joined.clone()));
                Ok(joined)
            }
        }
    }

    /// What is done under `key` now.
    pub(super) fn under_way(&self, key: &K) -> Option<&'static str> {
        self.0.get(key).map(|call| call.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn one_call_serves_all_who_ask_meanwhile() {
        let (joint, tasks, calls) = (
            Joint::default(),
            TaskTracker::new(),
            Arc::new(AtomicUsize::new(0)),
        );
        let ask = || {
            let calls = calls.clone();
            let call = joint.join(&tasks, "sb_1", "pause", || async move {
                tokio::task::yield_now().await;
                Ok(calls.fetch_add(1, Ordering::SeqCst))
            });
            call.unwrap()
        };
        let (one, other) = futures::join!(ask(), ask());
        assert_eq!((one.unwrap(), other.unwrap()), (0, 0));
        assert_eq!(ask().await.unwrap(), 1, "a later question is a new call");
        assert!(joint.0.is_empty());
    }

    #[tokio::test]
    async fn a_call_that_panics_is_an_error_once() {
        let (joint, tasks) = (Joint::<_, ()>::default(), TaskTracker::new());
        let call = joint.join(&tasks, "sb_1", "pause", || async { panic!("on purpose") });
        assert!(call.unwrap().await.is_err());
        let next = joint.join(&tasks, "sb_1", "pause", || async { Ok(()) });
        assert!(next.unwrap().await.is_ok());
    }

    #[tokio::test]
    async fn a_call_goes_on_without_its_client() {
        let (joint, tasks) = (Joint::default(), TaskTracker::new());
        let (done_tx, done_rx) = tokio::sync::oneshot::channel();
        let call = joint.join(&tasks, "sb_1", "pause", || async move {
            tokio::task::yield_now().await;
            let _ = done_tx.send(());
            Ok(())
        });
        drop(call.unwrap());
        let other = joint.join(&tasks, "sb_1", "resume", || async { Ok(()) });
        assert_eq!(other.err(), Some("pause"));
        done_rx.await.unwrap();
    }
}
