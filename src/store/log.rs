//! The recent changes, oldest first, bounded in number and weight.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Expired, Limits, Stored, Value, ordered::Ordered};
use crate::meta::ResourceVersion;

/// How many of the newest events keep their encoded forms. Readers further behind encode for themselves: they are few,
/// and the forms of a full log would weigh more than the objects.
const ENCODED_EVENTS: usize = 1_024;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It came to be.
    Added,
    /// It changed.
    Modified,
    /// It is gone.
    Deleted,
}

/// One change: the object before and after it.
#[derive(Debug)]
pub struct Event<V> {
    version: ResourceVersion,
    states: States<V>,
    encoded: Mutex<Vec<(u32, Bytes)>>,
}

#[derive(Debug)]
enum States<V> {
    Added(Arc<Stored<V>>),
    Modified {
        before: Arc<Stored<V>>,
        after: Arc<Stored<V>>,
    },
    Deleted(Arc<Stored<V>>),
}

impl<V: Value> Event<V> {
    /// The change from `before` to `after`; `None` when there is neither.
    pub(super) fn new(
        version: ResourceVersion,
        before: Option<Arc<Stored<V>>>,
        after: Option<Arc<Stored<V>>>,
    ) -> Option<Self> {
        let states = match (before, after) {
            (None, Some(after)) => States::Added(after),
            (Some(before), Some(after)) => States::Modified { before, after },
            (Some(before), None) => States::Deleted(before),
            (None, None) => return None,
        };
        Some(Self {
            version,
            states,
            encoded: Mutex::default(),
        })
    }

    /// The change's version; for a deletion it is newer than the last state's own.
    pub fn version(&self) -> ResourceVersion {
        self.version
    }

    /// What happened.
    pub fn kind(&self) -> EventKind {
        match self.states {
            States::Added(_) => EventKind::Added,
            States::Modified { .. } => EventKind::Modified,
            States::Deleted(_) => EventKind::Deleted,
        }
    }

    /// The object before the change.
    pub fn before(&self) -> Option<&Arc<Stored<V>>> {
        match &self.states {
            States::Added(_) => None,
            States::Modified { before, .. } | States::Deleted(before) => Some(before),
        }
    }

    /// The object after the change.
    pub fn after(&self) -> Option<&Arc<Stored<V>>> {
        match &self.states {
            States::Added(after) | States::Modified { after, .. } => Some(after),
            States::Deleted(_) => None,
        }
    }

    /// The object itself: after the change, or its last state.
    pub fn object(&self) -> &Arc<Stored<V>> {
        match &self.states {
            States::Added(object)
            | States::Deleted(object)
            | States::Modified { after: object, .. } => object,
        }
    }

    /// The bytes that `encode` makes of this event for the readers of `form`, made once for all of them.
    ///
    /// What a form is the caller knows; equal numbers must mean equal bytes.
    pub fn encoded(&self, form: u32, encode: impl FnOnce() -> Bytes) -> Bytes {
        let mut encoded = self.encoded.lock();
        if let Some((_, bytes)) = encoded.iter().find(|(known, _)| *known == form) {
            return bytes.clone();
        }
        let bytes = encode();
        encoded.push((form, bytes.clone()));
        bytes
    }

    fn forget_encoded(&self) {
        *self.encoded.lock() = Vec::new();
    }

    fn weight(&self) -> usize {
        // What was there before a modification is weighed with the event that made it so.
        size_of::<Self>() + self.object().value.weight()
    }
}

/// The log, and which of its events concern each key.
#[derive(Debug)]
pub(super) struct Log<V> {
    events: VecDeque<Arc<Event<V>>>,
    by_key: Ordered<VecDeque<Arc<Event<V>>>>,
    weight: usize,
    limits: Limits,
    /// The newest version that can no longer be read *after*: changes up to it have left the log.
    floor: ResourceVersion,
}

impl<V: Value> Log<V> {
    pub(super) fn new(floor: ResourceVersion, limits: Limits) -> Self {
        Self {
            events: VecDeque::new(),
            by_key: Ordered::default(),
            weight: 0,
            limits,
            floor,
        }
    }

    /// The oldest version at which the whole store can still be read.
    pub(super) fn floor(&self) -> ResourceVersion {
        self.floor
    }

    pub(super) fn push(&mut self, event: Arc<Event<V>>) {
        self.weight += event.weight();
        let object = event.object();
        self.by_key
            .entry_or_default(object.value.namespace(), object.value.name())
            .push_back(event.clone());
        self.events.push_back(event);
        if let Some(cooled) = self.events.len().checked_sub(ENCODED_EVENTS + 1) {
            self.events[cooled].forget_encoded();
        }
        while self.events.len() > self.limits.events || self.weight > self.limits.weight_bytes {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some(event) = self.events.pop_front() else {
            return;
        };
        self.weight -= event.weight();
        self.floor = event.version;
        let object = event.object();
        let (namespace, name) = (object.value.namespace(), object.value.name());
        let recent = self.by_key.entry_or_default(namespace, name);
        recent.pop_front();
        if recent.is_empty() {
            self.by_key.remove(namespace, name);
        }
    }

    pub(super) fn clear(&mut self, floor: ResourceVersion) {
        *self = Self::new(floor, self.limits);
    }

    /// At most `max` events after `version`, in order. Versions within the log are consecutive, so this is a lookup.
    pub(super) fn after(
        &self,
        version: ResourceVersion,
        max: usize,
    ) -> Result<Vec<Arc<Event<V>>>, Expired> {
        if version < self.floor {
            return Err(Expired { oldest: self.floor });
        }
        let start = usize::try_from(version.as_u64() - self.floor.as_u64()).unwrap_or(usize::MAX);
        Ok(self.events.iter().skip(start).take(max).cloned().collect())
    }

    pub(super) fn by_key(&self) -> &Ordered<VecDeque<Arc<Event<V>>>> {
        &self.by_key
    }
}
