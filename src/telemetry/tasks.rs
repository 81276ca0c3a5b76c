//! Background tasks and the guard that owns them.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Background tasks that live as long as this guard: dropping it aborts them.
///
/// A task that panics takes the process with it, by way of the shutdown token: a server that lives on without, say, its
/// namespace watch answers wrong for ever, while a restart heals.
#[derive(Debug)]
pub struct Tasks {
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
}

impl Tasks {
    /// An empty guard. `shutdown` is the token that ends the process.
    pub fn new(shutdown: CancellationToken) -> Self {
        Self {
            tasks: JoinSet::new(),
            shutdown,
        }
    }

    /// The token that ends the process.
    pub fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// Runs `task` in the background. `name` is for the log.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        // Finished tasks are taken out here, so that the set holds no more than what runs.
        while self.tasks.try_join_next().is_some() {}
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                tracing::error!(task = name, "background task panicked: shutting down");
                shutdown.cancel();
            }
        });
    }

    /// Waits until the tasks have ended by themselves, at most `patience`, then aborts the rest.
    pub async fn finish(mut self, patience: Duration) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // The rest is aborted by the drop of `self`.
        let _ = tokio::time::timeout(patience, all).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn dropping_the_guard_ends_its_tasks() {
        let (held_tx, held_rx) = oneshot::channel::<()>();
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("endless", async move {
            let _held = held_tx;
            std::future::pending::<()>().await;
        });
        drop(tasks);
        // The sender lives in the task, so that the error says that the task is gone.
        assert!(held_rx.await.is_err());
    }

    #[tokio::test]
    async fn a_panic_shuts_the_process_down() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("broken", async { panic!("on purpose") });
        tasks.shutdown().clone().cancelled().await;
    }

    #[tokio::test(start_paused = true)]
    async fn finishing_waits_for_what_is_running_but_not_for_ever() {
        let (done_tx, mut done_rx) = oneshot::channel();
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("short", async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let _ = done_tx.send(());
        });
        tasks.spawn("endless", std::future::pending());
        tasks.finish(Duration::from_secs(2)).await;
        assert_eq!(done_rx.try_recv(), Ok(()));
    }
}
