//! What is owed for VMs that were handed over: their SandboxClaims, or their end.
//!
//! The book is in memory. What it loses the daemon still tells: see the head of the room.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Gateway,
    metrics::GatewayMetrics,
    records::{Recorded, Records},
};
use crate::{
    api::{ClaimId, Delivery, SandboxKey},
    feed::Backoff,
};

/// What may be owed at one time. A gateway that owes more hands nothing over.
const MAX_OWED: usize = 4_096;
/// Of it, what may be of an earlier life: orphans whose records fail for ever keep nobody from claiming.
const MAX_ORPHANS: usize = MAX_OWED / 2;
/// What is worked off at once, and with claims that are given back, for which somebody waits.
const AT_ONCE: usize = 8;
const ENDS_AT_ONCE: usize = 16;
/// How long a record waits, so that the caller has the answer first and waits for no core that the record takes.
const ANSWERED_WITHIN: Duration = Duration::from_millis(5);
/// How long one attempt may take.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(10);
/// How long the VM of a claim that is given back is kept for kube-apiserver to note that its object goes.
const NOTED_WITHIN: Duration = Duration::from_secs(2);
/// How long it is known that a VM was given back, at least: a daemon that has just begun may deny one that it finds later.
const GONE_FOR: Duration = Duration::from_secs(120);
/// Whoever lists a VM so long after its end did not look before.
const LOOKED_WITHIN: Duration = Duration::from_secs(10);
/// Recorded claims that are known beyond the life of their VMs, so that they can be given back.
const MAX_LEFT: usize = 4_096;
/// How long the loop sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(3_600);

/// A VM that was handed over, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) struct Owed {
    pub(in crate::node) key: SandboxKey,
    pub(in crate::node) warm_pool: String,
    pub(in crate::node) delivery: Delivery,
    /// Whether an earlier life of the agent handed it over.
    pub(in crate::node) is_orphan: bool,
}

/// What is wanted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A SandboxClaim that is bound to it.
    Recorded,
    /// Neither a VM nor a SandboxClaim that was made for it.
    Gone,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Settled,
    Failed,
}

pub(super) struct Book {
    records: Records,
    metrics: GatewayMetrics,
    // Held for one look-up or change, never over an await.
    pages: Mutex<Pages>,
    changed: Notify,
}

#[derive(Default)]
struct Pages {
    owed: HashMap<ClaimId, Entry>,
    /// What needs nothing more, as long as the daemon lists it.
    settled: HashMap<ClaimId, Settled>,
    /// What was recorded, and the daemon does not list any more.
    left: HashMap<ClaimId, Owed>,
    /// Its claims, the oldest first.
    left_order: VecDeque<ClaimId>,
}

enum Settled {
    Recorded(Owed),
    Gone { owed: Owed, since: Instant },
}

struct Entry {
    owed: Owed,
    want: Want,
    due: Instant,
    backoff: Backoff,
    /// What is wanted by the attempt that is under way.
    trying: Option<Want>,
    failures: u32,
    /// Who waits for the next attempt at what is wanted.
    waiting: Vec<oneshot::Sender<Outcome>>,
}

/// Something that is due.
struct Due {
    owed: Owed,
    want: Want,
    failures: u32,
}

impl Book {
    pub(super) fn new(records: Records, metrics: GatewayMetrics) -> Self {
        Self {
            records,
            metrics,
            pages: Mutex::default(),
            changed: Notify::new(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.pages.lock().owed.len() >= MAX_OWED
    }

    /// Notes what is wanted of a VM from now on. Who waits hears how the next attempt at it ends.
    pub(super) fn owe(&self, owed: Owed, want: Want) -> oneshot::Receiver<Outcome> {
        let (outcome_tx, outcome_rx) = oneshot::channel();
        let id = owed.delivery.claim.clone();
        let due = match want {
            Want::Recorded => Instant::now() + ANSWERED_WITHIN,
            Want::Gone => Instant::now(),
        };
        let mut pages = self.pages.lock();
        pages.settled.remove(&id);
        if pages.left.remove(&id).is_some() {
            pages.left_order.retain(|left| *left != id);
        }
        let entry = pages.owed.entry(id).or_insert_with(|| Entry {
            owed,
            want,
            due,
            backoff: Backoff::default(),
            trying: None,
            failures: 0,
            waiting: Vec::new(),
        });
        // What is to go does not come back because somebody saw it before.
        if want == Want::Gone || entry.want != Want::Gone {
            (entry.want, entry.due) = (want, due);
        }
        entry.waiting.retain(|waiting| !waiting.is_closed());
        entry.waiting.push(outcome_tx);
        self.metrics.owed(pages.owed.len());
        drop(pages);
        self.changed.notify_one();
        outcome_rx
    }

    /// What is or was owed for a claim that may be given back.
    pub(super) fn owed(&self, claim: &ClaimId) -> Option<Owed> {
        let pages = self.pages.lock();
        let owed = match (pages.owed.get(claim), pages.settled.get(claim)) {
            (Some(entry), _) => &entry.owed,
            (None, Some(Settled::Recorded(owed))) => owed,
            (None, Some(Settled::Gone { .. })) => return None,
            (None, None) => pages.left.get(claim)?,
        };
        Some(owed.clone())
    }

    /// Of what the daemon lists, what is neither owed nor settled, as long as less than `most` waits for its first attempt. What was
    /// given back and is listed again is owed again.
    pub(super) fn unknown(&self, mut listed: Vec<Owed>, most: usize) -> Vec<Owed> {
        let mut pages = self.pages.lock();
        let returned = pages.turn(&listed);
        let untried = pages.owed.values().filter(|entry| entry.failures == 0);
        let room = most.saturating_sub(untried.count());
        let room = room.min(MAX_ORPHANS.saturating_sub(pages.owed.len()));
        listed.retain(|owed| {
            let id = &owed.delivery.claim;
            !pages.owed.contains_key(id) && !pages.settled.contains_key(id)
        });
        listed.truncate(room);
        drop(pages);
        for owed in returned {
            self.owe(owed, Want::Gone);
        }
        listed
    }

    fn len(&self) -> usize {
        self.pages.lock().owed.len()
    }

    /// Something that is due while so much is under way, now under way too; or when something will be.
    fn take_due(&self, now: Instant, under_way: usize) -> Result<Due, Instant> {
        let has_room = |entry: &Entry| match entry.want {
            Want::Recorded => under_way < AT_ONCE,
            Want::Gone => under_way < ENDS_AT_ONCE,
        };
        let mut pages = self.pages.lock();
        let waiting = pages
            .owed
            .values_mut()
            .filter(|entry| entry.trying.is_none() && has_room(entry));
        match waiting.min_by_key(|entry| entry.due) {
            Some(entry) if entry.due <= now => {
                entry.trying = Some(entry.want);
                Ok(Due {
                    owed: entry.owed.clone(),
                    want: entry.want,
                    failures: entry.failures,
                })
            }
            Some(entry) => Err(entry.due),
            None => Err(now + IDLE),
        }
    }

    /// Notes how an attempt ended. What was wanted anew meanwhile is due at once.
    fn tried(&self, claim: &ClaimId, outcome: Outcome) {
        let mut pages = self.pages.lock();
        let Some(entry) = pages.owed.get_mut(claim) else {
            return;
        };
        let tried = entry.trying.take();
        match outcome {
            _ if tried != Some(entry.want) => {
                entry.due = Instant::now();
                return;
            }
            Outcome::Settled => {}
            Outcome::Failed => {
                entry.failures += 1;
                entry.due = Instant::now() + entry.backoff.pause();
            }
        }
        for waiting in entry.waiting.drain(..) {
            // Who has left needs no word.
            let _ = waiting.send(outcome);
        }
        if outcome == Outcome::Settled
            && let Some(Entry { owed, want, .. }) = pages.owed.remove(claim)
        {
            let since = Instant::now();
            let settled = match want {
                Want::Recorded => Settled::Recorded(owed),
                Want::Gone => Settled::Gone { owed, since },
            };
            pages.settled.insert(claim.clone(), settled);
        }
        self.metrics.owed(pages.owed.len());
    }

    /// Makes everything due once more.
    fn hurry(&self) {
        let mut pages = self.pages.lock();
        for entry in pages.owed.values_mut() {
            entry.due = Instant::now();
        }
    }
}

impl Pages {
    /// Turns to what the daemon lists now, and gives what of it was given back.
    fn turn(&mut self, listed: &[Owed]) -> Vec<Owed> {
        let ids: HashSet<&ClaimId> = listed.iter().map(|owed| &owed.delivery.claim).collect();
        let (mut left, mut returned) = (Vec::new(), Vec::new());
        self.settled.retain(|id, settled| match settled {
            Settled::Recorded(_) if ids.contains(id) => true,
            Settled::Recorded(owed) => {
                left.push(owed.clone());
                false
            }
            Settled::Gone { owed, since } if ids.contains(id) => {
                let is_back = since.elapsed() >= LOOKED_WITHIN;
                returned.extend(is_back.then(|| owed.clone()));
                true
            }
            Settled::Gone { since, .. } => since.elapsed() < GONE_FOR,
        });
        for owed in left {
            self.leave(owed);
        }
        returned
    }

    fn leave(&mut self, owed: Owed) {
        let claim = owed.delivery.claim.clone();
        if self.left.insert(claim.clone(), owed).is_none() {
            self.left_order.push_back(claim);
        }
        while self.left_order.len() > MAX_LEFT {
            if let Some(oldest) = self.left_order.pop_front() {
                self.left.remove(&oldest);
            }
        }
    }
}

impl Gateway {
    /// Works off what is owed, until `shutdown` and then once more for everything that is left.
    pub(in crate::node) async fn work_off(self, shutdown: CancellationToken) {
        let book = &self.0.book;
        let mut under_way = FuturesUnordered::new();
        let mut last_tries = None;
        loop {
            let next = loop {
                if last_tries == Some(0) {
                    break Instant::now() + IDLE;
                }
                match book.take_due(Instant::now(), under_way.len()) {
                    Ok(due) => {
                        last_tries = last_tries.map(|left: usize| left - 1);
                        under_way.push(self.clone().try_once(due).boxed());
                    }
                    Err(due) => break due,
                }
            };
            if last_tries.is_some() && under_way.is_empty() {
                return;
            }
            tokio::select! {
                Some((claim, outcome)) = under_way.next(), if !under_way.is_empty() => {
                    book.tried(&claim, outcome);
                }
                () = book.changed.notified() => {}
                () = sleep_until(next) => {}
                () = shutdown.cancelled(), if last_tries.is_none() => {
                    book.hurry();
                    last_tries = Some(book.len());
                }
            }
        }
    }

    async fn try_once(self, due: Due) -> (ClaimId, Outcome) {
        let Due {
            owed,
            want,
            failures,
        } = due;
        let attempt = async {
            match want {
                Want::Recorded => self.record_once(&owed, failures).await,
                Want::Gone => self.end_once(&owed).await,
            }
        };
        let outcome = timeout(ATTEMPT_WITHIN, attempt).await;
        let outcome = outcome.unwrap_or_else(|_| {
            tracing::warn!(key = %owed.key, "what is owed for a claim was not done in time");
            Outcome::Failed
        });
        if outcome == Outcome::Failed {
            self.0.metrics.recorded("failed");
        }
        (owed.delivery.claim, outcome)
    }

    async fn record_once(&self, owed: &Owed, failures: u32) -> Outcome {
        let claim = &owed.delivery.claim;
        let is_there = || async { Ok(!self.daemon().is_absent(claim).await?) }.boxed();
        let is_late = owed.is_orphan || failures > 0;
        match self.0.book.records.record(owed, is_late, is_there).await {
            Ok(recorded) => {
                self.count(owed, recorded);
                Outcome::Settled
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(key = %owed.key, error, "a claim that was handed over is not recorded, which is tried again");
                Outcome::Failed
            }
        }
    }

    fn count(&self, owed: &Owed, recorded: Recorded) {
        let (key, claim) = (&owed.key, &owed.delivery.claim);
        self.0.metrics.recorded(recorded.word());
        match recorded {
            Recorded::Written if owed.is_orphan => {
                self.0.metrics.adopted();
                tracing::info!(%key, %claim, "a claim that an earlier life handed over is recorded");
            }
            Recorded::Double => {
                tracing::warn!(%key, %claim, "the SandboxClaim is bound to another sandbox; this one stays until it is given back or its lease ends");
            }
            Recorded::Written | Recorded::Known | Recorded::Gone => {}
        }
    }

    async fn end_once(&self, owed: &Owed) -> Outcome {
        let withdrawn = timeout(NOTED_WITHIN, self.0.book.records.withdraw(owed)).await;
        match &withdrawn {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = error as &dyn std::error::Error;
                tracing::warn!(key = %owed.key, error, "a SandboxClaim is not withdrawn, which is tried again");
            }
            Err(_) => {
                tracing::warn!(key = %owed.key, "a SandboxClaim is not withdrawn in time, which is tried again");
            }
        }
        let released = self.is_released(&owed.delivery.claim).await;
        if released {
            self.0.board.released(&owed.delivery.claim);
        }
        self.0.board.look_soon();
        match (withdrawn, released) {
            (Ok(Ok(())), true) => Outcome::Settled,
            _ => Outcome::Failed,
        }
    }

    /// Owes the record of what an earlier life handed over, as much of it as there is room for.
    pub(in crate::node) fn adopt(&self, listed: Vec<Owed>, most: usize) {
        for orphan in self.0.book.unknown(listed, most) {
            self.0.book.owe(orphan, Want::Recorded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;

    fn mk_book() -> Book {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        let metrics = GatewayMetrics::register(&Metrics::new());
        Book::new(Records::new(client), metrics)
    }

    fn mk_owed(claim: &str) -> Owed {
        Owed {
            key: SandboxKey::new("a", claim),
            warm_pool: "p".to_owned(),
            delivery: Delivery {
                node: "n1".into(),
                claim: claim.into(),
            },
            is_orphan: false,
        }
    }

    /// When a record is due of what was handed over just now.
    fn after_answer() -> Instant {
        Instant::now() + ANSWERED_WITHIN
    }

    fn due(book: &Book) -> Option<(String, Want)> {
        let due = book.take_due(after_answer(), 0).ok()?;
        Some((due.owed.delivery.claim.to_string(), due.want))
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_again_later_and_what_is_wanted_anew_at_once() {
        let (book, sb_1) = (mk_book(), ClaimId::from("sb_1"));
        book.owe(mk_owed("sb_1"), Want::Recorded);
        assert_eq!(due(&book), Some(("sb_1".to_owned(), Want::Recorded)));
        assert_eq!(due(&book), None, "it is under way");
        book.tried(&sb_1, Outcome::Failed);
        assert_eq!(due(&book), None, "it waits");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(due(&book), Some(("sb_1".to_owned(), Want::Recorded)));
        let mut heard = book.owe(mk_owed("sb_1"), Want::Gone);
        book.tried(&sb_1, Outcome::Settled);
        assert!(heard.try_recv().is_err(), "that was the record");
        assert_eq!(due(&book), Some(("sb_1".to_owned(), Want::Gone)));
        book.tried(&sb_1, Outcome::Settled);
        assert_eq!(heard.try_recv(), Ok(Outcome::Settled));
        assert_eq!((due(&book), book.len()), (None, 0));
    }

    #[tokio::test]
    async fn what_is_given_back_while_it_is_adopted_goes() {
        let book = mk_book();
        let orphans = book.unknown(vec![mk_owed("sb_1")], 8);
        book.owe(mk_owed("sb_1"), Want::Gone);
        for orphan in orphans {
            book.owe(orphan, Want::Recorded);
        }
        assert_eq!(due(&book), Some(("sb_1".to_owned(), Want::Gone)));
    }

    #[tokio::test]
    async fn what_is_given_back_waits_for_no_record() {
        let book = mk_book();
        book.owe(mk_owed("sb_1"), Want::Recorded);
        book.owe(mk_owed("sb_2"), Want::Gone);
        let due = |under_way| {
            let due = book.take_due(after_answer(), under_way).ok()?;
            Some(due.owed.delivery.claim.to_string())
        };
        assert_eq!(due(ENDS_AT_ONCE), None);
        assert_eq!(due(AT_ONCE).as_deref(), Some("sb_2"));
        assert_eq!(due(AT_ONCE), None);
        assert_eq!(due(AT_ONCE - 1).as_deref(), Some("sb_1"));
    }

    #[tokio::test]
    async fn what_is_owed_or_settled_is_no_orphan() {
        let book = mk_book();
        let listed = || ["sb_1", "sb_2", "sb_3", "sb_4"].map(mk_owed).to_vec();
        let unknown = |most| -> Vec<String> {
            let unknown = book.unknown(listed(), most).into_iter();
            unknown
                .map(|owed| owed.delivery.claim.to_string())
                .collect()
        };
        book.owe(mk_owed("sb_1"), Want::Recorded);
        due(&book);
        book.tried(&"sb_1".into(), Outcome::Settled);
        book.owe(mk_owed("sb_2"), Want::Gone);
        assert_eq!(unknown(8), ["sb_3", "sb_4"]);
        assert_eq!(unknown(2), ["sb_3"]);
        assert_eq!(unknown(1), [""; 0]);
        due(&book);
        book.tried(&"sb_2".into(), Outcome::Failed);
        assert_eq!(unknown(1), ["sb_3"], "what failed takes nobody's place");
        // A daemon that finds it again may have what was recorded, or not.
        assert_eq!(book.unknown(Vec::new(), 8), []);
        assert_eq!(unknown(8), ["sb_1", "sb_3", "sb_4"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_back_and_is_listed_again_goes_again() {
        let (book, sb_1) = (mk_book(), ClaimId::from("sb_1"));
        book.owe(mk_owed("sb_1"), Want::Gone);
        due(&book);
        book.tried(&sb_1, Outcome::Settled);
        let listed = || vec![mk_owed("sb_1")];
        assert_eq!(book.unknown(listed(), 8), [], "by a look from before");
        book.unknown(Vec::new(), 8);
        tokio::time::advance(LOOKED_WITHIN).await;
        assert_eq!((book.unknown(listed(), 8), book.len()), (Vec::new(), 1));
        assert_eq!(due(&book), Some(("sb_1".to_owned(), Want::Gone)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_recorded_claim_can_be_given_back_when_its_vm_is_gone() {
        let (book, sb_1) = (mk_book(), ClaimId::from("sb_1"));
        book.owe(mk_owed("sb_1"), Want::Recorded);
        due(&book);
        book.tried(&sb_1, Outcome::Settled);
        book.unknown(Vec::new(), 8);
        assert_eq!(book.owed(&sb_1), Some(mk_owed("sb_1")));
        book.owe(mk_owed("sb_1"), Want::Gone);
        due(&book);
        book.tried(&sb_1, Outcome::Settled);
        assert_eq!(book.owed(&sb_1), None);
        for n in 0..=MAX_LEFT {
            let claim = format!("sb_n{n}");
            book.owe(mk_owed(&claim), Want::Recorded);
            due(&book);
            book.tried(&claim.as_str().into(), Outcome::Settled);
        }
        book.unknown(Vec::new(), 8);
        assert_eq!(book.pages.lock().left.len(), MAX_LEFT);
    }
}
