//! Calls under way: how many there may be, when each has to end, and how it ended.

use std::{sync::Arc, time::Duration};

use compact_str::CompactString;
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

use super::{
    DataPlaneMetrics,
    metrics::Outcome,
    seats::{Seat, Seats},
    target::Action,
};
use crate::{api::SandboxKey, apiserver::Status};

/// Commands, lists and questions at once. Most wait, with two sockets and a command, which may have half a MiB. What they are
/// answered is bounded apart: by the client of the daemons as it comes, and by [`MAX_ANSWERS`] as it goes.
const MAX_SHORT: usize = 2_000;
/// Files on their way at once. Each may hold a frame of 8 MiB, in a buffer that grew to twice as much, and the 6 MiB that it says,
/// where somebody means harm: 3 GiB with all of them.
const MAX_TRANSFERS: usize = 128;
/// Part of these places that one namespace may have: a tenant who may make many sandboxes leaves places to others.
const NAMESPACE_PART: usize = 4;
/// Calls of one sandbox at once: a client that repeats itself leaves places to others of its namespace.
const MAX_OF_SANDBOX: usize = 16;
/// Bytes of long answers that wait at once for their clients to take them, in units of 1 KiB.
const MAX_ANSWERS: usize = 256 << 10;
/// How long calls go on once the server is asked to end: half the time after which the listener cuts what is left, so that their
/// clients are told.
const GRACE: Duration = Duration::from_secs(15);

/// The calls of a server.
#[derive(Debug)]
pub(super) struct Calls {
    short: Arc<Semaphore>,
    transfers: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    by_sandbox: Seats<SandboxKey>,
    /// Files and what is short apart, as their places are.
    by_namespace: Seats<(CompactString, bool)>,
    metrics: DataPlaneMetrics,
    shutdown: CancellationToken,
}

/// One of them, over when dropped.
#[derive(Debug)]
pub(super) struct Call {
    action: Action,
    metrics: DataPlaneMetrics,
    // Held for one store or load. Unset until it is known how the call ends; a call that is over before that has lost its client.
    outcome: Mutex<Option<Outcome>>,
    answers: Arc<Semaphore>,
    // Held for a store.
    answer: Mutex<Option<OwnedSemaphorePermit>>,
    _place: OwnedSemaphorePermit,
    _of_sandbox: Seat<SandboxKey>,
    _of_namespace: Seat<(CompactString, bool)>,
}

/// When a call has to end, whatever it is doing, and why.
pub(super) type End = Shared<BoxFuture<'static, Status>>;

impl Calls {
    pub(super) fn new(metrics: DataPlaneMetrics, shutdown: CancellationToken) -> Self {
        Self {
            short: Arc::new(Semaphore::new(MAX_SHORT)),
            transfers: Arc::new(Semaphore::new(MAX_TRANSFERS)),
            answers: Arc::new(Semaphore::new(MAX_ANSWERS)),
            by_sandbox: Seats::default(),
            by_namespace: Seats::default(),
            metrics,
            shutdown,
        }
    }

    /// Begins one.
    ///
    /// # Errors
    /// 429 when there are too many.
    pub(super) fn begin(&self, action: Action, key: &SandboxKey) -> Result<Arc<Call>, Status> {
        let busy = |whose: &str| {
            let text = format!("{whose} has too many commands and files under way");
            Status::too_many_requests(text, 1)
        };
        let (places, most) = match action.is_transfer() {
            true => (&self.transfers, MAX_TRANSFERS),
            false => (&self.short, MAX_SHORT),
        };
        let of_sandbox = self.by_sandbox.take(key.clone(), MAX_OF_SANDBOX);
        let of_sandbox = of_sandbox.ok_or_else(|| busy("the sandbox"))?;
        let namespace = (key.namespace.clone(), action.is_transfer());
        let of_namespace = self.by_namespace.take(namespace, most / NAMESPACE_PART);
        let of_namespace = of_namespace.ok_or_else(|| busy("the namespace"))?;
        let place = places.clone().try_acquire_owned();
        let place = place.map_err(|_| busy("the server"))?;
        self.metrics.open_calls.inc();
        Ok(Arc::new(Call {
            action,
            metrics: self.metrics.clone(),
            outcome: Mutex::new(None),
            answers: self.answers.clone(),
            answer: Mutex::new(None),
            _place: place,
            _of_sandbox: of_sandbox,
            _of_namespace: of_namespace,
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

    /// Finds room for so many bytes of its answer, until it is over.
    ///
    /// # Errors
    /// 503 when there is none. Without a time to come back at: what was asked for may be done.
    pub(super) fn keeps(&self, n_bytes: usize) -> Result<(), Status> {
        let units = u32::try_from(n_bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let room = self.answers.clone().try_acquire_many_owned(units);
        let none = |_| Status::unavailable("the server has no room for the answer");
        *self.answer.lock() = Some(room.map_err(none)?);
        Ok(())
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
        let begin = |action, name: &str| calls.begin(action, &key(name));
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
        assert!(calls.by_sandbox.are_free() && calls.by_namespace.are_free());
        assert_eq!(calls.metrics.open_calls.get(), 0);
    }

    #[test]
    fn a_namespace_has_a_part_of_a_server_s_places() {
        let calls = mk_calls();
        let begin = |action, namespace: usize, name: usize| {
            let key = SandboxKey::new(format!("ns{namespace}"), format!("s{name}"));
            calls.begin(action, &key)
        };
        let part = MAX_TRANSFERS / NAMESPACE_PART;
        let mut files: Vec<_> = (0..part)
            .map(|name| begin(Action::Download, 0, name).unwrap())
            .collect();
        let refused = begin(Action::Upload, 0, part).unwrap_err();
        assert!(refused.message().starts_with("the namespace has too many"));
        assert!(begin(Action::List, 0, 0).is_ok(), "has places of its own");
        for name in part..MAX_TRANSFERS {
            files.push(begin(Action::Download, name / part, name).unwrap());
        }
        let refused = begin(Action::Upload, NAMESPACE_PART, 0).unwrap_err();
        assert!(refused.message().starts_with("the server has too many"));
        drop(files);
        assert!(begin(Action::Upload, NAMESPACE_PART, 0).is_ok());
        assert!(calls.by_sandbox.are_free() && calls.by_namespace.are_free());
    }

    #[test]
    fn answers_have_so_much_room() {
        let calls = mk_calls();
        let begin = |name: &str| calls.begin(Action::Execute, &key(name)).unwrap();
        let (first, second) = (begin("a"), begin("b"));
        first.keeps(200 << 20).unwrap();
        let refused = second.keeps(60 << 20).unwrap_err();
        let told = (refused.code().as_u16(), refused.retry_after_seconds());
        assert_eq!(told, (503, None));
        drop(first);
        second.keeps(60 << 20).unwrap();
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
