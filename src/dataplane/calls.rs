//! Calls under way: how many there may be, when each has to end, and how it ended.

use std::{sync::Arc, time::Duration};

use dashmap::DashMap;
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{DataPlaneMetrics, metrics::Outcome, target::Action};
use crate::{api::SandboxKey, apiserver::Status};

/// Commands, lists and questions at once. One that waits costs two sockets and little else.
const MAX_SHORT: usize = 2_000;
/// Files on their way at once. Each may hold a frame and what it says, 15 MiB where somebody means harm.
const MAX_TRANSFERS: usize = 128;
/// Calls of one sandbox at once: nobody takes all the places with the one that he has.
const MAX_OF_SANDBOX: usize = 16;
/// How long calls go on once the server is asked to end. The listener then waits as long for the last of their answers.
const GRACE: Duration = Duration::from_secs(15);

/// The calls of a server.
#[derive(Debug)]
pub(super) struct Calls {
    short: Arc<Semaphore>,
    transfers: Arc<Semaphore>,
    by_sandbox: Arc<DashMap<SandboxKey, usize>>,
    metrics: DataPlaneMetrics,
    shutdown: CancellationToken,
}

/// One of them, over when dropped.
#[derive(Debug)]
pub(super) struct Call {
    action: Action,
    key: SandboxKey,
    by_sandbox: Arc<DashMap<SandboxKey, usize>>,
    metrics: DataPlaneMetrics,
    // Held for one store or load. Not known until its end; and when it is dropped before, its client has left.
    outcome: Mutex<Option<Outcome>>,
    _place: OwnedSemaphorePermit,
}

/// When a call has to end, whatever it is doing, and why.
pub(super) type End = Shared<BoxFuture<'static, Status>>;

impl Calls {
    pub(super) fn new(metrics: DataPlaneMetrics, shutdown: CancellationToken) -> Self {
        Self {
            short: Arc::new(Semaphore::new(MAX_SHORT)),
            transfers: Arc::new(Semaphore::new(MAX_TRANSFERS)),
            by_sandbox: Arc::default(),
            metrics,
            shutdown,
        }
    }

    /// Begins one.
    ///
    /// # Errors
    /// 429 when there are too many.
    pub(super) fn begin(&self, action: Action, key: SandboxKey) -> Result<Arc<Call>, Status> {
        let busy = |whose: &str| {
            let text = format!("{whose} has too many commands and files under way");
            Status::too_many_requests(text, 1)
        };
        let places = match action.is_transfer() {
            true => &self.transfers,
            false => &self.short,
        };
        let place = places.clone().try_acquire_owned();
        let place = place.map_err(|_| busy("the server"))?;
        {
            let mut n_calls = self.by_sandbox.entry(key.clone()).or_default();
            if *n_calls >= MAX_OF_SANDBOX {
                return Err(busy("the sandbox"));
            }
            *n_calls += 1;
        }
        self.metrics.open_calls.inc();
        Ok(Arc::new(Call {
            action,
            key,
            by_sandbox: self.by_sandbox.clone(),
            metrics: self.metrics.clone(),
            outcome: Mutex::new(None),
            _place: place,
        }))
    }

    /// The end of a call that may take until `deadline`.
    pub(super) fn end(&self, deadline: Instant) -> End {
        let shutdown = self.shutdown.clone();
        let end = async move {
            let ending = async {
                shutdown.cancelled().await;
                tokio::time::sleep(GRACE).await;
            };
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => Status::timeout("it took too long"),
                () = ending => Status::unavailable("the server is ending"),
            }
        };
        end.boxed().shared()
    }
}

impl Call {
    /// Notes how it ended, unless that is known.
    pub(super) fn ends(&self, outcome: Outcome) {
        self.outcome.lock().get_or_insert(outcome);
    }

    /// Notes that it ended so.
    pub(super) fn refused(&self, status: &Status) {
        self.ends(match status.code().is_client_error() {
            true => Outcome::Refused,
            false => Outcome::Failed,
        });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.by_sandbox
            .alter(&self.key, |_, n_calls| n_calls.saturating_sub(1));
        self.by_sandbox
            .remove_if(&self.key, |_, n_calls| *n_calls == 0);
        self.metrics.open_calls.dec();
        let outcome = self.outcome.lock().unwrap_or(Outcome::Left);
        self.metrics.ended(self.action, outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_calls() -> Calls {
        Calls::new(DataPlaneMetrics::default(), CancellationToken::new())
    }

    fn key(name: &str) -> SandboxKey {
        SandboxKey::new("default", name)
    }

    #[test]
    fn a_sandbox_has_so_many_and_a_server_has_more() {
        let calls = mk_calls();
        let begin = |action, name: &str| calls.begin(action, key(name));
        let mut held: Vec<_> = (0..MAX_OF_SANDBOX)
            .map(|_| begin(Action::Execute, "a").unwrap())
            .collect();
        let refused = begin(Action::Upload, "a").unwrap_err();
        assert_eq!(
            (refused.code().as_u16(), refused.retry_after_seconds()),
            (429, Some(1))
        );
        assert!(begin(Action::Execute, "b").is_ok());
        assert_eq!(calls.transfers.available_permits(), MAX_TRANSFERS);
        held.pop();
        assert!(begin(Action::Execute, "a").is_ok());
        drop(held);
        assert!(calls.by_sandbox.is_empty());
        assert_eq!(calls.metrics.open_calls.get(), 0);

        let files: Vec<_> = (0..MAX_TRANSFERS)
            .map(|number| begin(Action::Download, &format!("s{number}")).unwrap())
            .collect();
        assert!(begin(Action::Upload, "a").is_err());
        assert!(begin(Action::List, "a").is_ok(), "has places of its own");
        drop(files);
        assert!(begin(Action::Upload, "a").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_at_its_deadline_or_soon_after_the_server_is_asked_to() {
        let calls = mk_calls();
        let begun = Instant::now();
        let end = calls.end(begun + Duration::from_secs(60));
        assert_eq!(end.clone().await.code(), 504);
        assert_eq!(begun.elapsed(), Duration::from_secs(60));

        let begun = Instant::now();
        let end = calls.end(begun + Duration::from_secs(60));
        calls.shutdown.cancel();
        assert_eq!(end.clone().await.code(), 503);
        assert_eq!(begun.elapsed(), GRACE);
        assert_eq!(end.await.code(), 503, "whoever asks");
    }
}
