//! The state that an agent tells, and its changes in order.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use compact_str::CompactString;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

use super::{
    Listener, NodeState, Row,
    usage::Uses,
    wire::{Message, Part, PartOf},
};
use crate::{
    api::{ClaimId, PoolKey, UserPart, labels},
    sandboxd::{ClockOffset, NodeTime},
};

/// Listeners at once: the replicas of the server, with room for those that are being replaced.
const MAX_LISTENERS: usize = 16;
/// Bytes and lines of changes that listeners may lag behind.
const MAX_LOG_BYTES: usize = 8 << 20;
const MAX_LOG_LINES: usize = 16_384;
/// After how long at the latest listeners are told again what the node has, if that is as it was.
const NODE_AGAIN: Duration = Duration::from_secs(10);

/// What a node's agent knows, to be told to every listener. A clone is the same one.
#[derive(Clone)]
pub struct Board(pub(super) Arc<Shared>);

/// A look at the daemon that has begun.
#[derive(Debug)]
pub struct Poll(u64);

/// Everything as it is now.
#[derive(Clone, Debug)]
pub struct Current {
    /// The daemon's rows, by id.
    pub rows: Vec<Row>,
    /// What the daemon says of itself.
    pub node: NodeState,
    /// When the daemon was last read.
    pub observed_at: NodeTime,
}

pub(super) struct Shared {
    pub(super) epoch: u64,
    pub(super) polls_begun: AtomicU64,
    // Held for one merge or one copy of pointers, never over an await.
    pub(super) state: Mutex<State>,
    // The same, and never together with `state`.
    pub(super) uses: Mutex<Uses>,
    pub(super) progress: watch::Sender<Progress>,
    pub(super) wanted: Notify,
    listeners: Arc<Semaphore>,
}

/// What listeners wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// The last change.
    pub(super) seq: u64,
    /// The last look at the daemon that was answered.
    pub(super) polled: u64,
    pub(super) daemon_answers: bool,
    /// How far the clock that the rows are told by is ahead of this machine's.
    pub(super) clock: ClockOffset,
    pub(super) closed: bool,
}

pub(super) struct State {
    seq: u64,
    pub(super) entries: BTreeMap<ClaimId, Entry>,
    pub(super) node: NodeState,
    /// When listeners were told so last.
    node_told: Option<Instant>,
    pub(super) observed_at: Option<NodeTime>,
    /// When the daemon last answered.
    pub(super) looked: Option<Instant>,
    /// How many entries refer to what.
    pub(super) refs: HashMap<CompactString, usize>,
    /// References that are being claimed beside the daemon, and the word of each attempt: a row that it made is told when it is
    /// decided about, and not before.
    pub(super) reserved: HashMap<CompactString, CompactString>,
    /// What was confirmed to be gone, and the last look that had begun then: neither that nor an earlier one brings it back.
    pub(super) gone: HashMap<ClaimId, u64>,
    /// What was taken of each pool since the last look.
    pub(super) taken: HashMap<PoolKey, u32>,
    /// The lines of the last changes; the newest is `seq`.
    log: VecDeque<Bytes>,
    log_bytes: usize,
}

pub(super) struct Entry {
    pub(super) row: Row,
    user: Option<Arc<UserPart>>,
    /// The last look that had begun when the sandbox was listed without one: neither that nor an earlier one need have it.
    pub(super) since: u64,
    /// The sandbox as a part, for the snapshots to come.
    part: Bytes,
}

/// A snapshot's lines, and the change that they include.
pub(super) struct Snapshot {
    pub(super) seq: u64,
    pub(super) parts: Vec<Bytes>,
    pub(super) sandboxes: usize,
}

impl Board {
    /// A board of a new epoch, on which nothing is known.
    pub fn new() -> Self {
        let progress = Progress {
            seq: 0,
            polled: 0,
            daemon_answers: false,
            clock: ClockOffset::default(),
            closed: false,
        };
        Self(Arc::new(Shared {
            // 53 bits, so that readers who keep numbers as floats can tell epochs apart as well.
            epoch: rand::random::<u64>() >> 11,
            polls_begun: AtomicU64::new(0),
            state: Mutex::new(State {
                seq: 0,
                entries: BTreeMap::new(),
                node: NodeState::default(),
                node_told: None,
                observed_at: None,
                looked: None,
                refs: HashMap::new(),
                reserved: HashMap::new(),
                gone: HashMap::new(),
                taken: HashMap::new(),
                log: VecDeque::new(),
                log_bytes: 0,
            }),
            uses: Mutex::default(),
            progress: watch::Sender::new(progress),
            wanted: Notify::new(),
            listeners: Arc::new(Semaphore::new(MAX_LISTENERS)),
        }))
    }

    /// To be called before the daemon is asked. One at a time.
    pub fn poll_begins(&self) -> Poll {
        Poll(self.0.polls_begun.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Takes over what the daemon answered: all its sandboxes. `user_of` gives what is kept for a sandbox's user; it is
    /// called while the board is locked, so that [`Board::user_changed`] cannot be overtaken.
    pub fn polled(
        &self,
        poll: &Poll,
        rows: Vec<Row>,
        node: NodeState,
        observed_at: NodeTime,
        user_of: impl Fn(&ClaimId) -> Option<Arc<UserPart>>,
    ) {
        let mut state = self.0.state.lock();
        let (seq, mut before) = (state.seq, std::mem::take(&mut state.entries));
        state.gone.retain(|_, begun| *begun >= poll.0);
        for row in rows {
            // A daemon that lists an id twice is believed once.
            if state.gone.contains_key(&row.id) || state.entries.contains_key(&row.id) {
                continue;
            }
            let known = before.remove(&row.id);
            if known.is_none() && state.is_undecided(&row) {
                continue;
            }
            let user = user_of(&row.id);
            state.list(known, row, user);
        }
        for (id, entry) in before {
            if entry.since >= poll.0 {
                state.entries.insert(id, entry);
                continue;
            }
            state.take_off(entry);
        }
        state.taken.clear();
        state.looked = Some(Instant::now());
        let has_changes = state.seq != seq;
        state.tell_node(node, has_changes);
        state.observed_at = Some(observed_at);
        self.0.tell(&state, |progress| {
            progress.polled = poll.0;
            progress.daemon_answers = true;
        });
    }

    /// Notes that the daemon did not answer: what it has is told as it was.
    pub fn poll_failed(&self) {
        let state = self.0.state.lock();
        self.0
            .tell(&state, |progress| progress.daemon_answers = false);
    }

    /// Takes over how far the daemon's clock is ahead of this machine's, for the heartbeats to come. They are the same one, but
    /// for a daemon that is not really on this machine.
    pub fn set_clock(&self, offset: ClockOffset) {
        self.0.progress.send_if_modified(|progress| {
            progress.clock = offset;
            false
        });
    }

    /// Takes over what is kept for a sandbox's user from now on. One that the daemon has not listed yet waits for its row.
    ///
    /// Listeners are told the user's part alone: what the board knows of the sandbox may be older than what they did to it.
    pub fn user_changed(
        &self,
        claim: &ClaimId,
        user_of: impl Fn(&ClaimId) -> Option<Arc<UserPart>>,
    ) {
        let mut state = self.0.state.lock();
        let user = user_of(claim);
        let Some(known) = state.entries.get_mut(claim) else {
            return;
        };
        if known.user == user {
            return;
        }
        known.user = user;
        known.part = known.encode(false);
        let news = known.encode(true);
        state.record(&news);
        self.0.tell(&state, |_| {});
    }

    /// Everything as it is now; `None` before the daemon's first answer.
    pub fn current(&self) -> Option<Current> {
        let state = self.0.state.lock();
        Some(Current {
            observed_at: state.observed_at?,
            rows: state
                .entries
                .values()
                .map(|entry| entry.row.clone())
                .collect(),
            node: state.node.clone(),
        })
    }

    /// What the daemon said of itself.
    pub fn node(&self) -> NodeState {
        self.0.state.lock().node.clone()
    }

    /// The number of changes so far: equal numbers, equal [`Board::current`] but for its time.
    pub fn seq(&self) -> u64 {
        self.0.progress.borrow().seq
    }

    /// Whether the daemon answered the last time.
    pub fn daemon_answers(&self) -> bool {
        self.0.progress.borrow().daemon_answers
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        MAX_LISTENERS - self.0.listeners.available_permits()
    }

    /// Returns when a new listener waits for a look at the daemon.
    pub async fn poll_wanted(&self) {
        self.0.wanted.notified().await;
    }

    /// A new listener; `None` when there are too many.
    pub fn listen(&self) -> Option<Listener> {
        let place = self.0.listeners.clone().try_acquire_owned().ok()?;
        // A look that is under way began before the question.
        let after = self.0.polls_begun.load(Ordering::SeqCst);
        self.0.wanted.notify_one();
        Some(Listener::new(self.0.clone(), place, after))
    }

    /// Ends every listener, now and from now on.
    pub fn close(&self) {
        self.0
            .progress
            .send_modify(|progress| progress.closed = true);
    }
}

impl Default for Board {
    fn default() -> Self {
        Self::new()
    }
}

/// A listener's place among the few that there are.
pub(super) type Place = OwnedSemaphorePermit;

impl Shared {
    pub(super) fn tell(&self, state: &State, change: impl FnOnce(&mut Progress)) {
        self.progress.send_if_modified(|progress| {
            let before = (progress.seq, progress.polled, progress.daemon_answers);
            progress.seq = state.seq;
            change(progress);
            before != (progress.seq, progress.polled, progress.daemon_answers)
        });
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let node = encode(&Part::Node(state.node.clone()));
        let sandboxes = state.entries.values().map(|entry| entry.part.clone());
        Snapshot {
            seq: state.seq,
            parts: std::iter::once(node).chain(sandboxes).collect(),
            sandboxes: state.entries.len(),
        }
    }

    /// The changes from number `next` on, as many as fit in `room` bytes but at least one; `None` when some of them are gone.
    pub(super) fn changes(&self, next: u64, room: usize) -> Option<Vec<Bytes>> {
        let state = self.state.lock();
        let missing = usize::try_from(state.seq + 1 - next).ok()?;
        let from = state.log.len().checked_sub(missing)?;
        let mut bytes = 0;
        let fits = |line: &&Bytes| {
            let first = bytes == 0;
            bytes += line.len();
            first || bytes <= room
        };
        Some(state.log.range(from..).take_while(fits).cloned().collect())
    }
}

impl State {
    /// Puts a sandbox on the board, and records it unless it is as it was.
    pub(super) fn list(&mut self, known: Option<Entry>, row: Row, user: Option<Arc<UserPart>>) {
        let id = row.id.clone();
        let before = known.as_ref().map(|known| known.row.reference());
        if before != Some(row.reference()) {
            if let Some(before) = before {
                self.forget_ref(before);
            }
            *self.refs.entry(row.reference().into()).or_default() += 1;
        }
        let entry = match known {
            Some(known) if known.row == row && known.user == user => Entry { since: 0, ..known },
            _ => {
                let mut entry = Entry {
                    row,
                    user,
                    since: 0,
                    part: Bytes::new(),
                };
                entry.part = entry.encode(false);
                self.record(&entry.part);
                entry
            }
        };
        self.entries.insert(id, entry);
    }

    /// Records that an entry is on the board no more.
    pub(super) fn take_off(&mut self, entry: Entry) {
        self.forget_ref(entry.row.reference());
        self.record(&encode(&Part::Removed(entry.row.id)));
    }

    /// Whether a claim made the row that is being decided about. Somebody else's of the same reference is told.
    fn is_undecided(&self, row: &Row) -> bool {
        let attempt = self.reserved.get(row.reference());
        attempt.is_some_and(|own| {
            row.metadata
                .get(labels::ATTEMPT)
                .is_some_and(|of| of == own)
        })
    }

    fn forget_ref(&mut self, claim_ref: &str) {
        if let Some(count) = self.refs.get_mut(claim_ref) {
            *count -= 1;
            if *count == 0 {
                self.refs.remove(claim_ref);
            }
        }
    }

    /// Records what the node has, also if it is as it was: listeners count its VMs down by what they claim, and a pool that
    /// was refilled between two looks shows nothing of it. After changes of its sandboxes they may have; or a claim may have
    /// come and gone between two looks.
    fn tell_node(&mut self, node: NodeState, has_changes: bool) {
        let is_due = |told: Instant| told.elapsed() >= NODE_AGAIN;
        if has_changes || self.node != node || self.node_told.is_none_or(is_due) {
            self.record(&encode(&Part::Node(node.clone())));
            self.node = node;
            self.node_told = Some(Instant::now());
        }
    }

    pub(super) fn record(&mut self, part: &Bytes) {
        self.seq += 1;
        let head = format!(r#"{{"change":{{"seq":{},"part":"#, self.seq);
        let line = Bytes::from([head.as_bytes(), part, b"}}\n"].concat());
        self.log_bytes += line.len();
        self.log.push_back(line);
        while self.log_bytes > MAX_LOG_BYTES || self.log.len() > MAX_LOG_LINES {
            let Some(oldest) = self.log.pop_front() else {
                return;
            };
            self.log_bytes -= oldest.len();
        }
    }
}

impl Entry {
    fn encode(&self, row_repeats: bool) -> Bytes {
        encode(&PartOf::Sandbox {
            row: &self.row,
            user: self.user.as_deref(),
            row_repeats,
        })
    }
}

pub(super) fn encode(part: &impl Serialize) -> Bytes {
    serde_json::to_vec(part)
        .expect("strings, numbers, and texts that were read as JSON")
        .into()
}

/// The line of a message.
pub(super) fn line(message: &Message) -> Bytes {
    let mut json = serde_json::to_vec(message).expect("strings and numbers");
    json.push(b'\n');
    json.into()
}
