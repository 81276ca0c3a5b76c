//! Claims that are made beside the daemon: a name and a warm VM are reserved before, and what is granted is listed at once.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use compact_str::CompactString;

use super::{
    Board, Row,
    board::{Shared, encode},
    wire::Part,
};
use crate::api::{ClaimId, PoolKey};

/// When half of what was warm is taken, the daemon is looked at anew, unless that was done so lately: without listeners the next
/// look may be seconds away, and a pool refills sooner.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Why nothing was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreserved {
    /// What the daemon holds is not known, or it does not answer.
    NotRead,
    /// The daemon holds a sandbox of this reference.
    NameTaken,
    /// One of this reference is being claimed or given back.
    NameUndecided,
    /// The daemon keeps no warm VM of the pool, or takes no claims.
    NothingWarm,
}

/// A claim reference that nobody else claims here, as long as this lives. What the attempt made of it is told to nobody meanwhile: it
/// may yet be given back.
pub struct Reservation {
    board: Arc<Shared>,
    claim_ref: CompactString,
}

impl Board {
    /// Reserves a reference, and one warm VM of a pool until the next look at the daemon. `attempt` is the word of the claim's own that
    /// goes with it in its metadata.
    ///
    /// # Errors
    /// [`Unreserved`], and nothing was done.
    pub fn reserve(
        &self,
        claim_ref: &str,
        attempt: &str,
        pool: &PoolKey,
    ) -> Result<Reservation, Unreserved> {
        let mut state = self.0.state.lock();
        let Some(looked) = state.looked.filter(|_| self.daemon_answers()) else {
            return Err(Unreserved::NotRead);
        };
        if state.refs.contains_key(claim_ref) {
            return Err(Unreserved::NameTaken);
        }
        if state.reserved.contains_key(claim_ref) {
            return Err(Unreserved::NameUndecided);
        }
        let pools = state.node.pools.iter();
        let warm = pools.filter(|known| known.key == *pool).map(|it| it.warm);
        let (warm, draining) = (warm.sum::<u32>(), state.node.draining);
        let taken = state.taken.entry(pool.clone()).or_default();
        if taken.saturating_mul(2) >= warm && looked.elapsed() >= LOOK_AGAIN {
            self.look_soon();
        }
        if draining || *taken >= warm {
            return Err(Unreserved::NothingWarm);
        }
        *taken += 1;
        state.reserved.insert(claim_ref.into(), attempt.into());
        Ok(Reservation {
            board: self.0.clone(),
            claim_ref: claim_ref.into(),
        })
    }

    /// Asks for a look at the daemon without waiting for its turn.
    pub fn look_soon(&self) {
        self.0.wanted.notify_one();
    }

    /// Takes off a sandbox that the daemon has confirmed to be gone: listeners hear of it now, and its name is free. A look that has
    /// begun may still have it, and is not believed.
    pub fn released(&self, id: &ClaimId) {
        let mut state = self.0.state.lock();
        let begun = self.0.polls_begun.load(Ordering::SeqCst);
        state.gone.insert(id.clone(), begun);
        match state.entries.remove(id) {
            Some(entry) => state.take_off(entry),
            // It was never told of here, and a server that asked the daemon itself may list it.
            None => state.record(&encode(&Part::Removed(id.clone()))),
        }
        self.0.tell(&state, |_| {});
    }

    /// The sandboxes whose metadata has this key.
    pub fn marked(&self, key: &str) -> Vec<Row> {
        let state = self.0.state.lock();
        let entries = state.entries.values();
        let marked = entries.filter(|entry| entry.row.metadata.contains_key(key));
        marked.map(|entry| entry.row.clone()).collect()
    }
}

impl Reservation {
    /// Lists what was granted for it: listeners hear of it now.
    pub fn granted(self, row: Row) {
        let mut state = self.board.state.lock();
        let id = row.id.clone();
        let known = state.entries.remove(&id);
        state.list(known, row, None);
        let since = self.board.polls_begun.load(Ordering::SeqCst);
        if let Some(entry) = state.entries.get_mut(&id) {
            entry.since = since;
        }
        self.board.tell(&state, |_| {});
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.board.state.lock().reserved.remove(&self.claim_ref);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::labels,
        feed::{NodeState, Poll, Pool, State},
        meta::UnixTime,
        sandboxd::NodeTime,
    };

    fn mk_pool() -> PoolKey {
        PoolKey {
            template: "t".into(),
            net: "none".into(),
            size: "small".into(),
        }
    }

    fn mk_row(id: &str, claim_ref: &str) -> Row {
        Row {
            id: id.into(),
            claim_ref: claim_ref.into(),
            state: State::Running,
            deadline: None,
            claimed_at: None,
            pool: mk_pool(),
            from_checkpoint: None,
            metadata: Default::default(),
        }
    }

    fn look(board: &Board, poll: &Poll, rows: Vec<Row>, warm: u32) {
        let pool = Pool {
            key: mk_pool(),
            warm,
            target: 2,
        };
        let node = NodeState {
            pools: vec![pool],
            draining: false,
        };
        let at = NodeTime::told(UnixTime::from_secs(0));
        board.polled(poll, rows, node, at, |_| None);
    }

    fn ids(board: &Board) -> Vec<String> {
        let rows = board.current().unwrap().rows;
        rows.iter().map(|row| row.id.to_string()).collect()
    }

    #[test]
    fn a_name_is_reserved_once_and_a_warm_vm_once() {
        let (board, pool) = (Board::new(), mk_pool());
        let refused = |claim_ref| board.reserve(claim_ref, "mine", &pool).err();
        assert_eq!(refused("a/x"), Some(Unreserved::NotRead));
        look(
            &board,
            &board.poll_begins(),
            vec![mk_row("sb_1", "a/held")],
            2,
        );
        assert_eq!(refused("a/held"), Some(Unreserved::NameTaken));
        let first = board.reserve("a/x", "mine", &pool).unwrap();
        assert_eq!(refused("a/x"), Some(Unreserved::NameUndecided));
        drop(first);
        let again = board.reserve("a/x", "mine", &pool);
        assert_eq!(refused("a/y"), Some(Unreserved::NothingWarm));
        look(&board, &board.poll_begins(), vec![], 1);
        assert_eq!(refused("a/y"), None);
        drop(again);
        board.poll_failed();
        assert_eq!(refused("a/y"), Some(Unreserved::NotRead));
    }

    #[test]
    fn what_is_not_decided_is_not_told_and_what_was_granted_stays_over_an_older_look() {
        let (board, pool) = (Board::new(), mk_pool());
        look(&board, &board.poll_begins(), vec![], 2);
        let reserved = board.reserve("a/x", "mine", &pool).unwrap();
        let under_way = board.poll_begins();
        let own = Row {
            metadata: [(labels::ATTEMPT.to_owned(), "mine".to_owned())].into(),
            ..mk_row("sb_1", "a/x")
        };
        let others = mk_row("sb_2", "a/x");
        look(&board, &under_way, vec![own, others], 1);
        assert_eq!(ids(&board), ["sb_2"], "which is somebody else's");
        look(&board, &board.poll_begins(), vec![], 1);
        let older = board.poll_begins();
        reserved.granted(mk_row("sb_1", "a/x"));
        assert_eq!(ids(&board), ["sb_1"]);
        let taken = board.reserve("a/x", "mine", &pool).err();
        assert_eq!(taken, Some(Unreserved::NameTaken));
        look(&board, &older, vec![], 1);
        assert_eq!(ids(&board), ["sb_1"]);
        look(&board, &board.poll_begins(), vec![], 1);
        assert_eq!(ids(&board), [""; 0]);
        assert!(board.reserve("a/x", "mine", &pool).is_ok());
    }

    #[test]
    fn a_name_is_taken_as_long_as_the_daemon_lists_it_and_no_longer() {
        let (board, pool) = (Board::new(), mk_pool());
        let look_at = |rows| look(&board, &board.poll_begins(), rows, 2);
        let refused = |claim_ref| board.reserve(claim_ref, "mine", &pool).err();
        let of_checkpoint = Row {
            metadata: [(labels::CLAIM_REF.to_owned(), "a/x".to_owned())].into(),
            ..mk_row("sb_1", "")
        };
        look_at(vec![of_checkpoint]);
        assert_eq!(refused("a/x"), Some(Unreserved::NameTaken));
        for _ in 0..3 {
            look_at(vec![mk_row("sb_1", "a/y"), mk_row("sb_1", "a/y")]);
            assert_eq!(
                (refused("a/x"), refused("a/y")),
                (None, Some(Unreserved::NameTaken))
            );
        }
        look_at(vec![]);
        assert_eq!(refused("a/y"), None);
    }

    #[test]
    fn what_is_released_is_gone_for_looks_that_had_begun_before_too() {
        let (board, pool) = (Board::new(), mk_pool());
        let rows = || vec![mk_row("sb_1", "a/x"), mk_row("sb_2", "a/y")];
        look(&board, &board.poll_begins(), rows(), 2);
        let under_way = board.poll_begins();
        let seq = board.seq();
        board.released(&"sb_1".into());
        assert_eq!(ids(&board), ["sb_2"]);
        assert_eq!(board.seq(), seq + 1, "listeners are told");
        board.released(&"sb_9".into());
        assert_eq!(board.seq(), seq + 2, "also of what was never told of");
        assert!(board.reserve("a/x", "mine", &pool).is_ok());
        look(&board, &under_way, rows(), 2);
        assert_eq!(ids(&board), ["sb_2"]);
        board.released(&"sb_2".into());
        // A daemon that lists it to whoever asks now has it after all.
        look(&board, &board.poll_begins(), rows(), 2);
        assert_eq!(ids(&board), ["sb_1", "sb_2"]);
        assert!(board.0.state.lock().gone.is_empty());
    }
}
