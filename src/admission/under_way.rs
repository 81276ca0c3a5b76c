//! Objects that are being made and are counted before they are there.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use compact_str::CompactString;
use parking_lot::Mutex;

use crate::store::{Store, Value};

/// Where objects are counted: resource and namespace.
pub(super) type Place = (CompactString, CompactString);

/// What is being made, by place.
#[derive(Debug, Default)]
pub(super) struct UnderWay(HashMap<Place, Making>);

/// What is being made in one place.
#[derive(Debug, Default)]
struct Making {
    /// Names, each with the number of creates that try for it: one at most succeeds.
    names: HashMap<CompactString, usize>,
    /// Objects whose names are not known yet.
    n_unnamed: usize,
}

/// The right to make objects that a quota counts. It counts until it is dropped, or the object is in its store, whichever is
/// first; so it is kept until then. A clone is the same right.
///
/// Where no quota is, it is empty.
#[derive(Clone, Debug, Default)]
pub struct QuotaReservation(Option<Arc<Held>>);

#[derive(Debug)]
struct Held {
    under_way: Arc<Mutex<UnderWay>>,
    place: Place,
    // Held for a push; never over an await.
    share: Mutex<Share>,
}

/// What a reservation is for.
#[derive(Debug, Default)]
pub(super) struct Share {
    names: Vec<CompactString>,
    n_unnamed: usize,
}

impl Share {
    pub(super) fn named(name: CompactString) -> Self {
        Self {
            names: vec![name],
            n_unnamed: 0,
        }
    }

    pub(super) fn unnamed(count: usize) -> Self {
        Self {
            names: Vec::new(),
            n_unnamed: count,
        }
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.names.len() + self.n_unnamed
    }
}

impl UnderWay {
    /// Objects in a place, with those that are being made. One that is in the store already counts once.
    pub(super) fn count<V: Value>(&self, place: &Place, store: &Store<V>) -> usize {
        match self.0.get(place) {
            None => store.count_with(&place.1, []),
            Some(making) => {
                let names = making.names.keys().map(CompactString::as_str);
                store.count_with(&place.1, names) + making.n_unnamed
            }
        }
    }

    /// Whether an object of the name is being made.
    pub(super) fn has(&self, place: &Place, name: &str) -> bool {
        let making = self.0.get(place);
        making.is_some_and(|making| making.names.contains_key(name))
    }

    fn add(&mut self, place: &Place, share: &Share) {
        let making = self.0.entry(place.clone()).or_default();
        making.n_unnamed += share.n_unnamed;
        for name in &share.names {
            *making.names.entry(name.clone()).or_default() += 1;
        }
    }

    fn remove(&mut self, place: &Place, share: &Share) {
        let Entry::Occupied(mut entry) = self.0.entry(place.clone()) else {
            return;
        };
        let making = entry.get_mut();
        making.n_unnamed -= share.n_unnamed;
        for name in &share.names {
            if let Entry::Occupied(mut creates) = making.names.entry(name.clone()) {
                *creates.get_mut() -= 1;
                if *creates.get() == 0 {
                    creates.remove();
                }
            }
        }
        if making.n_unnamed == 0 && making.names.is_empty() {
            entry.remove();
        }
    }
}

impl QuotaReservation {
    /// Counts `share` from now on. `under_way` is locked by the caller, who has counted.
    pub(super) fn begin(
        under_way: &Arc<Mutex<UnderWay>>,
        locked: &mut UnderWay,
        place: Place,
        share: Share,
    ) -> Self {
        locked.add(&place, &share);
        Self(Some(Arc::new(Held {
            under_way: under_way.clone(),
            place,
            share: Mutex::new(share),
        })))
    }

    /// Tells the name of one of the objects that had none, before it is put into its store: from then on it counts once.
    pub fn name(&self, name: &str) {
        let Some(held) = &self.0 else {
            return;
        };
        let mut share = held.share.lock();
        if share.n_unnamed == 0 {
            return;
        }
        let mut under_way = held.under_way.lock();
        under_way.remove(&held.place, &share);
        share.n_unnamed -= 1;
        share.names.push(name.into());
        under_way.add(&held.place, &share);
    }

    /// Whether a quota counts what is made.
    pub fn is_counted(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let share = std::mem::take(self.share.get_mut());
        self.under_way.lock().remove(&self.place, &share);
    }
}
