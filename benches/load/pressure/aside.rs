//! Work on a thread of its own.

use anyhow::{Context as _, bail};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Work on a thread with a runtime of its own. It goes on until it is ended, or this is dropped.
pub(super) struct Aside<T> {
    name: &'static str,
    stop: DropGuard,
    done_rx: oneshot::Receiver<anyhow::Result<T>>,
}

/// What the work tells, and is told.
pub(super) struct Signals {
    /// It is to end.
    pub(super) stop: CancellationToken,
    open_tx: Option<oneshot::Sender<()>>,
}

impl<T: Send + 'static> Aside<T> {
    /// Begins the work and waits until it says that it is open.
    pub(super) async fn begin<W>(name: &'static str, work: W) -> anyhow::Result<Self>
    where
        W: AsyncFnOnce(Signals) -> anyhow::Result<T> + Send + 'static,
    {
        let (open_tx, open_rx) = oneshot::channel();
        let (done_tx, done_rx) = oneshot::channel();
        let stop = CancellationToken::new();
        let signals = Signals {
            stop: stop.clone(),
            open_tx: Some(open_tx),
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || {
            // Who would wait for it may be gone.
            let _ = done_tx.send(run(signals, work));
        })?;
        let aside = Self {
            name,
            stop: stop.drop_guard(),
            done_rx,
        };
        if open_rx.await.is_err() {
            aside.end().await?;
            bail!("{name}: ended before it was open");
        }
        Ok(aside)
    }

    /// Ends the work and returns what came of it.
    pub(super) async fn end(self) -> anyhow::Result<T> {
        let Self {
            name,
            stop,
            done_rx,
        } = self;
        drop(stop);
        let done = done_rx.await;
        done.with_context(|| format!("{name}: panicked"))?
            .context(name)
    }
}

impl Signals {
    pub(super) fn is_open(&mut self) {
        if let Some(open_tx) = self.open_tx.take() {
            let _ = open_tx.send(());
        }
    }
}

fn run<T, W>(signals: Signals, work: W) -> anyhow::Result<T>
where
    W: AsyncFnOnce(Signals) -> anyhow::Result<T>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work(signals))
}
