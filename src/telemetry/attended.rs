//! Work that is done where somebody waits for it, and elsewhere once nobody does.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{runtime::Handle, sync::oneshot};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// Polls `work`. Dropped before its end, it leaves the rest to a task: what was begun is finished in any case. A task from the
/// beginning was rejected: who waits for one is woken by it, on another core most times, which takes longer than the work.
///
/// Either way it is counted among the tasks that it was made with until it ends, and a panic in it is its own: who waits hears of it,
/// as of a task's, and goes on.
#[derive(Debug)]
pub struct Attended<W>
where
    W: Future<Output: Send> + Send + 'static,
{
    work: Option<Pin<Box<W>>>,
    tasks: TaskTracker,
    runtime: Handle,
    _counted: TaskTrackerToken,
}

/// The work has panicked, which the log tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work panicked")]
pub struct Panicked;

impl<W> Attended<W>
where
    W: Future<Output: Send> + Send + 'static,
{
    /// `work` as one of `tasks`.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(tasks: &TaskTracker, work: W) -> Self {
        Self {
            work: Some(Box::pin(work)),
            tasks: tasks.clone(),
            runtime: Handle::current(),
            _counted: tasks.token(),
        }
    }
}

/// What `work` sends to `answer_rx`, as soon as it is there: what it does afterwards is left to a task. An error is work that
/// ended without an answer.
///
/// Whoever drops this before is seen by the work to have left: `answer_rx` is closed before it goes on.
///
/// # Panics
/// Outside a tokio runtime.
pub async fn answer_of<T>(
    tasks: &TaskTracker,
    work: impl Future<Output = ()> + Send + 'static,
    answer_rx: oneshot::Receiver<T>,
) -> Result<T, oneshot::error::RecvError> {
    let mut work = Attended::new(tasks, work);
    // Behind the work, and so dropped before it.
    let mut answer_rx = answer_rx;
    tokio::select! {
        biased;
        _ = &mut work => answer_rx.await,
        answer = &mut answer_rx => answer,
    }
}

impl<W> Future for Attended<W>
where
    W: Future<Output: Send> + Send + 'static,
{
    type Output = Result<W::Output, Panicked>;

    /// # Panics
    /// After its end.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Not in its place while it is polled: what has panicked is not to be gone on with.
        let mut work = self.work.take().expect("polled after its end");
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Ok(Poll::Pending) => {
                self.work = Some(work);
                Poll::Pending
            }
            // The panic's hook has said where.
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    }
}

impl<W> Drop for Attended<W>
where
    W: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.tasks.spawn_on(work, &self.runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        sync::oneshot,
        time::{sleep, timeout},
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_any_more_goes_on() {
        let tasks = TaskTracker::new();
        let (done_tx, mut done_rx) = oneshot::channel();
        let work = Attended::new(&tasks, async move {
            sleep(Duration::from_secs(2)).await;
            let _ = done_tx.send(());
        });
        assert!(timeout(Duration::from_secs(1), work).await.is_err());
        assert!(done_rx.try_recv().is_err());
        tasks.close();
        tasks.wait().await;
        assert!(done_rx.try_recv().is_ok());
    }

    #[tokio::test]
    async fn what_is_waited_for_is_done_here() {
        let tasks = TaskTracker::new();
        let here = tokio::task::try_id();
        let work = Attended::new(&tasks, async {
            tokio::task::yield_now().await;
            tokio::task::try_id()
        });
        assert_eq!(tasks.len(), 1);
        assert_eq!(work.await, Ok(here));
        assert!(tasks.is_empty());
    }

    #[tokio::test]
    async fn a_panic_is_the_works_own() {
        let tasks = TaskTracker::new();
        let mut work = Attended::new(&tasks, async { panic!("on purpose") });
        assert_eq!((&mut work).await, Err(Panicked));
        drop(work);
        assert!(tasks.is_empty());
    }
}
