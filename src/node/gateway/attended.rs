//! Work that is done where somebody waits for it, and elsewhere once nobody does.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// Polls `work`. Dropped before its end, it leaves the rest to a task: what was begun is finished in any case. A task from the
/// beginning was rejected: who waits for one is woken by it, on another core most times, which takes longer than the work.
///
/// Either way it is counted among `tasks` until it ends.
pub(super) struct Attended<W: Future<Output = ()> + Send + 'static> {
    work: Option<Pin<Box<W>>>,
    tasks: TaskTracker,
    runtime: Handle,
    _counted: TaskTrackerToken,
}

impl<W: Future<Output = ()> + Send + 'static> Attended<W> {
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn new(tasks: &TaskTracker, work: W) -> Self {
        Self {
            work: Some(Box::pin(work)),
            tasks: tasks.clone(),
            runtime: Handle::current(),
            _counted: tasks.token(),
        }
    }
}

impl<W: Future<Output = ()> + Send + 'static> Future for Attended<W> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(work) = &mut self.work {
            ready!(work.as_mut().poll(cx));
            self.work = None;
        }
        Poll::Ready(())
    }
}

impl<W: Future<Output = ()> + Send + 'static> Drop for Attended<W> {
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
        let work = Attended::new(&tasks, async move {
            assert_eq!(tokio::task::try_id(), here);
            tokio::task::yield_now().await;
        });
        assert_eq!(tasks.len(), 1);
        work.await;
        assert!(tasks.is_empty());
    }
}
