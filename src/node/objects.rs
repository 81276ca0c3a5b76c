//! What users sent of their sandboxes, kept on the node's disk.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::{
    Error, NodeMetrics, Result,
    log::{Change, Log},
};
use crate::api::{ClaimId, UserPart};

/// Longest user part: annotations may have 256 KiB together, and a spec and its managed fields fit beside them.
const MAX_OBJECT: usize = 768 << 10;
/// User parts, and bytes of them, that one node keeps.
const MAX_OBJECTS: usize = 32_768;
/// Less than the server takes over a feed, which has the daemon's rows as well.
const MAX_BYTES: usize = 192 << 20;
/// A write that takes longer is a disk in trouble.
const WRITE_WITHIN: Duration = Duration::from_secs(5);
/// Writes that wait; more callers wait for their turn.
const QUEUE: usize = 256;

/// What users sent of their sandboxes. A clone is the same set.
#[derive(Clone)]
pub struct Objects {
    shared: Arc<Shared>,
    writes_tx: mpsc::Sender<Write>,
}

struct Shared {
    // Held for a look-up or one change of the map, never over a write to the file.
    kept: Mutex<Kept>,
    // Held for a look or a change of it.
    writing: Mutex<Writing>,
    metrics: NodeMetrics,
}

/// How the last write to the file went.
#[derive(Clone, Copy, Debug, Default)]
enum Writing {
    #[default]
    Done,
    Failed,
    UnderWay {
        since: Instant,
    },
}

#[derive(Default)]
struct Kept {
    by_claim: HashMap<ClaimId, Object>,
    bytes: usize,
}

struct Object {
    user: Arc<UserPart>,
    bytes: usize,
    /// Since when the daemon does not list the claim.
    absent_since: Option<Instant>,
}

struct Write {
    change: Change,
    bytes: usize,
    done_tx: oneshot::Sender<Result<()>>,
}

impl Objects {
    /// What lies in `state_dir`, and a task that writes there; it ends with the last clone.
    ///
    /// # Errors
    /// [`Error::State`] when the directory cannot be used, also when another agent uses it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(state_dir: &Path, metrics: NodeMetrics) -> Result<Self> {
        std::fs::create_dir_all(state_dir).map_err(|source| Error::state(state_dir, source))?;
        let (log, stored) = Log::open(state_dir)?;
        let mut kept = Kept::default();
        for (claim, user) in stored {
            let bytes = serde_json::to_vec(&*user).map_or(0, |json| json.len());
            kept.set(&claim, Some(user), bytes);
        }
        let shared = Arc::new(Shared {
            kept: Mutex::new(kept),
            writing: Mutex::default(),
            metrics,
        });
        shared.show();
        let (writes_tx, writes_rx) = mpsc::channel(QUEUE);
        tokio::spawn(write_all(log, shared.clone(), writes_rx));
        Ok(Self { shared, writes_tx })
    }

    /// What is kept of a claim.
    pub fn get(&self, claim: &ClaimId) -> Option<Arc<UserPart>> {
        let kept = self.shared.kept.lock();
        kept.by_claim.get(claim).map(|object| object.user.clone())
    }

    /// Keeps a user part, given as JSON. On success it is on the disk.
    ///
    /// # Errors
    /// [`Error::InvalidClaim`], [`Error::TooLarge`], [`Error::Malformed`], [`Error::Full`], [`Error::State`].
    pub async fn put(&self, claim: &ClaimId, json: &[u8]) -> Result<()> {
        check_claim(claim)?;
        if json.len() > MAX_OBJECT {
            return Err(Error::TooLarge {
                bytes: json.len(),
                limit: MAX_OBJECT,
            });
        }
        let user: UserPart = serde_json::from_slice(json).map_err(|error| Error::Malformed {
            reason: error.to_string(),
        })?;
        if !self.shared.kept.lock().has_room_for(claim, json.len()) {
            return Err(Error::Full);
        }
        self.write((claim.clone(), Some(Arc::new(user))), json.len())
            .await
    }

    /// Forgets a user part.
    ///
    /// # Errors
    /// [`Error::InvalidClaim`], [`Error::State`].
    pub async fn delete(&self, claim: &ClaimId) -> Result<()> {
        check_claim(claim)?;
        if self.get(claim).is_none() {
            return Ok(());
        }
        self.write((claim.clone(), None), 0).await
    }

    /// Notes which claims the daemon lists, and forgets the user parts of those that it has not listed for `keep_absent`.
    ///
    /// # Errors
    /// [`Error::State`].
    pub(super) async fn sweep(
        &self,
        listed: &HashSet<ClaimId>,
        keep_absent: Duration,
        now: Instant,
    ) -> Result<()> {
        let over = self.shared.kept.lock().over(listed, keep_absent, now);
        let deletes = over.into_iter().map(|claim| self.write((claim, None), 0));
        futures::future::try_join_all(deletes).await.map(drop)
    }

    /// Why what is put does not reach the disk, if it does not.
    pub(super) fn trouble(&self, now: Instant) -> Option<&'static str> {
        self.shared.writing.lock().trouble(now)
    }

    /// Returns when nothing can be written any more: the task that writes has panicked.
    pub(super) async fn writer_ended(&self) {
        self.writes_tx.closed().await;
    }

    async fn write(&self, change: Change, bytes: usize) -> Result<()> {
        let (done_tx, done_rx) = oneshot::channel();
        let write = Write {
            change,
            bytes,
            done_tx,
        };
        let sent = self.writes_tx.send(write).await;
        sent.map_err(|_| Error::Ending)?;
        done_rx.await.unwrap_or(Err(Error::Ending))
    }
}

impl Writing {
    fn trouble(self, now: Instant) -> Option<&'static str> {
        match self {
            Self::Failed => Some("the state directory cannot be written"),
            Self::UnderWay { since } if now.saturating_duration_since(since) >= WRITE_WITHIN => {
                Some("the state directory takes no writes")
            }
            Self::Done | Self::UnderWay { .. } => None,
        }
    }
}

impl Kept {
    fn set(&mut self, claim: &ClaimId, user: Option<Arc<UserPart>>, bytes: usize) {
        let before = match user {
            None => self.by_claim.remove(claim),
            Some(user) => {
                let object = Object {
                    user,
                    bytes,
                    absent_since: None,
                };
                self.by_claim.insert(claim.clone(), object)
            }
        };
        self.bytes = self.bytes + bytes - before.map_or(0, |object| object.bytes);
    }

    fn has_room_for(&self, claim: &ClaimId, bytes: usize) -> bool {
        let known = self.by_claim.get(claim).map_or(0, |object| object.bytes);
        let is_new = usize::from(known == 0);
        self.by_claim.len() + is_new <= MAX_OBJECTS && self.bytes - known + bytes <= MAX_BYTES
    }

    /// The claims that have been absent for too long.
    fn over(
        &mut self,
        listed: &HashSet<ClaimId>,
        keep_absent: Duration,
        now: Instant,
    ) -> Vec<ClaimId> {
        let mut over = Vec::new();
        for (claim, object) in &mut self.by_claim {
            if listed.contains(claim) {
                object.absent_since = None;
            } else {
                let since = *object.absent_since.get_or_insert(now);
                if now.saturating_duration_since(since) >= keep_absent {
                    over.push(claim.clone());
                }
            }
        }
        over
    }
}

impl Shared {
    fn show(&self) {
        let kept = self.kept.lock();
        self.metrics.objects(kept.by_claim.len(), kept.bytes);
    }
}

/// Writes what waits, all of it with one sync, until nobody can ask any more. The file is written on a thread that may block.
async fn write_all(mut log: Log, shared: Arc<Shared>, mut writes_rx: mpsc::Receiver<Write>) {
    let mut waiting = Vec::new();
    while writes_rx.recv_many(&mut waiting, QUEUE).await > 0 {
        let writes = std::mem::take(&mut waiting);
        let of_thread = shared.clone();
        let since = Instant::now();
        *shared.writing.lock() = Writing::UnderWay { since };
        let written = tokio::task::spawn_blocking(move || {
            let changes: Vec<Change> = writes.iter().map(|write| write.change.clone()).collect();
            let outcome = log.append(&changes, || with_changes(&of_thread, &changes));
            (log, writes, outcome)
        });
        let outcome;
        let writes;
        // Only a panic ends the thread early, and then nobody knows what the file holds: the task goes with it.
        (log, writes, outcome) = match written.await {
            Ok(written) => written,
            Err(failed) => std::panic::resume_unwind(failed.into_panic()),
        };
        *shared.writing.lock() = match outcome {
            Ok(()) => Writing::Done,
            Err(_) => Writing::Failed,
        };
        shared.metrics.written(writes.len(), outcome.is_ok());
        for write in writes {
            if outcome.is_ok() {
                let (claim, user) = write.change;
                shared.kept.lock().set(&claim, user, write.bytes);
            }
            // Who asked may have left.
            let _ = write.done_tx.send(outcome.clone());
        }
        shared.show();
    }
}

/// What is kept, with changes that are about to be.
fn with_changes(shared: &Shared, changes: &[Change]) -> Vec<(ClaimId, Arc<UserPart>)> {
    let mut stored: HashMap<ClaimId, Arc<UserPart>> = {
        let kept = shared.kept.lock();
        let objects = kept.by_claim.iter();
        objects
            .map(|(claim, object)| (claim.clone(), object.user.clone()))
            .collect()
    };
    for (claim, user) in changes {
        match user {
            Some(user) => stored.insert(claim.clone(), user.clone()),
            None => stored.remove(claim),
        };
    }
    stored.into_iter().collect()
}

fn check_claim(claim: &ClaimId) -> Result<()> {
    let id = claim.as_str();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if (1..=128).contains(&id.len()) && id.bytes().all(is_plain) {
        Ok(())
    } else {
        Err(Error::InvalidClaim)
    }
}

#[cfg(test)]
impl Objects {
    /// Objects of these claims that nobody writes. What is returned beside them takes the writes in; dropped, it is as if the
    /// writer had panicked.
    pub(super) fn stalled(claims: &[ClaimId]) -> (Self, impl Send + use<>) {
        let (writes_tx, writes_rx) = mpsc::channel(QUEUE);
        let mut kept = Kept::default();
        for claim in claims {
            kept.set(claim, Some(Arc::default()), 1);
        }
        let shared = Arc::new(Shared {
            kept: Mutex::new(kept),
            writing: Mutex::default(),
            metrics: NodeMetrics::default(),
        });
        (Self { shared, writes_tx }, writes_rx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_objects(dir: &Path) -> Objects {
        Objects::open(dir, NodeMetrics::default()).unwrap()
    }

    /// Opens the directory once the writer of an earlier set has let go of it.
    async fn reopened(dir: &Path) -> Objects {
        loop {
            match Objects::open(dir, NodeMetrics::default()) {
                Ok(objects) => return objects,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    #[tokio::test]
    async fn what_was_put_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let objects = mk_objects(dir.path());
        let puts = (0..50).map(|n| {
            let objects = objects.clone();
            async move {
                let json = format!(r#"{{"generation": {n}}}"#);
                let claim = format!("sb_{n}").as_str().into();
                objects.put(&claim, json.as_bytes()).await
            }
        });
        for outcome in futures::future::join_all(puts).await {
            outcome.unwrap();
        }
        objects.delete(&"sb_7".into()).await.unwrap();
        drop(objects);
        let objects = reopened(dir.path()).await;
        assert_eq!(objects.get(&"sb_49".into()).unwrap().generation, 49);
        assert_eq!(objects.get(&"sb_7".into()), None);
    }

    #[tokio::test]
    async fn an_object_that_is_sent_in_many_lines_is_stored_in_one() {
        let dir = tempfile::tempdir().unwrap();
        let objects = mk_objects(dir.path());
        let json = b"{\n \"generation\": 1,\n \"spec\": {\n  \"a\": [\n1\n]\n }\n}";
        objects.put(&"sb_1".into(), json).await.unwrap();
        drop(objects);
        let objects = reopened(dir.path()).await;
        let kept = objects.get(&"sb_1".into()).expect("it was acknowledged");
        assert_eq!(&*kept.spec, r#"{"a":[1]}"#);
    }

    #[tokio::test]
    async fn only_user_parts_of_a_bounded_length_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let objects = mk_objects(dir.path());
        let put = async |id: &str, json: &str| objects.put(&id.into(), json.as_bytes()).await;
        for id in ["", "../x", "a b", &"x".repeat(129)] {
            assert!(matches!(
                put(id, r#"{"generation": 1}"#).await,
                Err(Error::InvalidClaim)
            ));
        }
        assert!(matches!(put("a", "[]").await, Err(Error::Malformed { .. })));
        let long = format!(
            r#"{{"generation": 1, "spec": "{}"}}"#,
            "x".repeat(MAX_OBJECT)
        );
        assert!(matches!(put("a", &long).await, Err(Error::TooLarge { .. })));
        assert_eq!(objects.get(&"a".into()), None);
    }

    #[tokio::test]
    async fn a_disk_that_refuses_or_stalls_is_told_of() {
        let begun = Instant::now();
        let stalls = Writing::UnderWay { since: begun };
        assert_eq!(stalls.trouble(begun + Duration::from_secs(4)), None);
        assert!(stalls.trouble(begun + Duration::from_secs(5)).is_some());
        let dir = tempfile::tempdir().unwrap();
        let objects = mk_objects(dir.path());
        let put = async || objects.put(&"sb_1".into(), br#"{"generation": 1}"#).await;
        put().await.unwrap();
        assert_eq!(objects.trouble(begun), None);
        *objects.shared.writing.lock() = Writing::Failed;
        assert!(objects.trouble(begun).is_some());
        put().await.unwrap();
        assert_eq!(objects.trouble(begun), None, "it heals by itself");
    }

    #[tokio::test]
    async fn an_object_outlives_its_sandbox_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let objects = mk_objects(dir.path());
        let (claim, keep) = (ClaimId::from("sb_1"), Duration::from_secs(10));
        objects.put(&claim, br#"{"generation": 1}"#).await.unwrap();
        let (listed, none, start) = (
            HashSet::from([claim.clone()]),
            HashSet::new(),
            Instant::now(),
        );
        let at = |seconds| start + Duration::from_secs(seconds);
        for (list, seconds, is_kept) in [
            (&none, 0, true),
            (&none, 9, true),
            (&listed, 10, true),
            (&none, 11, true),
            (&none, 20, true),
            (&none, 21, false),
        ] {
            objects.sweep(list, keep, at(seconds)).await.unwrap();
            assert_eq!(objects.get(&claim).is_some(), is_kept, "after {seconds} s");
        }
    }
}
