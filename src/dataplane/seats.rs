//! Who has how many calls under way.

use std::{hash::Hash, sync::Arc};

use dashmap::DashMap;

/// How many each one has. Who has none is not in it.
#[derive(Debug)]
pub(super) struct Seats<K: Eq + Hash>(Arc<DashMap<K, usize>>);

/// One of them, free again when dropped.
#[derive(Debug)]
pub(super) struct Seat<K: Eq + Hash> {
    of: K,
    taken: Arc<DashMap<K, usize>>,
}

impl<K: Eq + Hash + Clone> Seats<K> {
    /// One more for `of`, which may have `most`; `None` when it has as many.
    pub(super) fn take(&self, of: K, most: usize) -> Option<Seat<K>> {
        {
            let mut n_taken = self.0.entry(of.clone()).or_default();
            if *n_taken >= most {
                return None;
            }
            *n_taken += 1;
        }
        Some(Seat {
            of,
            taken: self.0.clone(),
        })
    }

    #[cfg(test)]
    pub(super) fn are_free(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Eq + Hash> Default for Seats<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash> Drop for Seat<K> {
    fn drop(&mut self) {
        self.taken
            .alter(&self.of, |_, n_taken| n_taken.saturating_sub(1));
        self.taken.remove_if(&self.of, |_, n_taken| *n_taken == 0);
    }
}
