//! Calls that several clients may ask for at once and that are made once.

use std::sync::Arc;

use dashmap::DashMap;
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use tokio_util::task::TaskTracker;

use super::{Error, Result};
use crate::api::ClaimId;

/// Which call on which claim.
pub(super) type JointKey = (ClaimId, &'static str);

type Call<T> = Shared<BoxFuture<'static, Result<T>>>;

/// Calls under way. Bounded by the number of requests that may be in flight, since each was begun by one.
pub(super) struct Joint<T: Clone>(Arc<DashMap<JointKey, Call<T>>>);

impl<T: Clone> Default for Joint<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Joint<T> {
    /// The result of the call under `key`: the one that is under way, or the one that `begin` makes.
    ///
    /// The call runs on its own task, so that dropping the returned future does not stop it.
    pub(super) fn join<F>(
        &self,
        tasks: &TaskTracker,
        key: JointKey,
        begin: impl FnOnce() -> F,
    ) -> Call<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        use dashmap::Entry;
        match self.0.entry(key.clone()) {
            Entry::Occupied(call) => call.get().clone(),
            Entry::Vacant(place) => {
                let (calls, call) = (self.0.clone(), begin());
                let task = tasks.spawn(async move {
                    let result = call.await;
                    calls.remove(&key);
                    result
                });
                // A panic in the call leaves its entry behind; the joined error says so to whoever comes again.
                let joined = task
                    .map(|result| result.unwrap_or(Err(Error::Ending)))
                    .boxed()
                    .shared();
                place.insert(joined).clone()
            }
        }
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
        let key: JointKey = ("sb_1".into(), "pause");
        let ask = || {
            let calls = calls.clone();
            joint.join(&tasks, key.clone(), || async move {
                tokio::task::yield_now().await;
                Ok(calls.fetch_add(1, Ordering::SeqCst))
            })
        };
        let (one, other) = futures::join!(ask(), ask());
        assert_eq!((one.unwrap(), other.unwrap()), (0, 0));
        assert_eq!(ask().await.unwrap(), 1, "a later question is a new call");
        assert!(joint.0.is_empty());
    }

    #[tokio::test]
    async fn a_call_goes_on_without_its_client() {
        let (joint, tasks) = (Joint::default(), TaskTracker::new());
        let (done_tx, done_rx) = tokio::sync::oneshot::channel();
        drop(joint.join(&tasks, ("sb_1".into(), "pause"), || async move {
            tokio::task::yield_now().await;
            let _ = done_tx.send(());
            Ok(())
        }));
        done_rx.await.unwrap();
    }
}
