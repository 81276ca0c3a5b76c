//! How much may be under way at once, so that a flood is refused and not queued.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Status;
use crate::schema::Verb;

/// Reads and writes in flight; the defaults of kube-apiserver. Streams do not count.
const MAX_READS: usize = 400;
const MAX_WRITES: usize = 200;

/// The places of requests in flight.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

/// A place, given back when dropped; none for requests that need none.
pub(super) type Place = Option<OwnedSemaphorePermit>;

impl Default for Limits {
    fn default() -> Self {
        Self {
            reads: Arc::new(Semaphore::new(MAX_READS)),
            writes: Arc::new(Semaphore::new(MAX_WRITES)),
        }
    }
}

impl Limits {
    /// A place for a request, at once.
    ///
    /// # Errors
    /// 429 when all are taken; never for `privileged` requests and for watches.
    pub(super) fn enter(&self, verb: Verb, privileged: bool) -> Result<Place, Status> {
        if privileged || verb == Verb::Watch {
            return Ok(None);
        }
        let places = if verb.is_write() {
            &self.writes
        } else {
            &self.reads
        };
        match places.clone().try_acquire_owned() {
            Ok(permit) => Ok(Some(permit)),
            Err(_) => Err(Status::too_many_requests(
                "too many requests, please try again later",
                1,
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_refused_and_places_come_back() {
        let limits = Limits::default();
        let mut places: Vec<_> = (0..MAX_WRITES)
            .map(|_| limits.enter(Verb::Create, false).unwrap())
            .collect();
        let refused = limits.enter(Verb::Delete, false).unwrap_err();
        assert_eq!(
            (refused.code().as_u16(), refused.retry_after_seconds()),
            (429, Some(1))
        );
        assert!(
            limits.enter(Verb::Get, false).is_ok(),
            "reads have places of their own"
        );
        assert!(
            limits.enter(Verb::Delete, true).is_ok() && limits.enter(Verb::Watch, false).is_ok()
        );
        places.pop();
        assert!(limits.enter(Verb::Delete, false).is_ok());
    }
}
