//! The store itself: commits, reads at a version, and waking of watchers.

use std::{cmp::Ordering, collections::VecDeque, sync::Arc};

use parking_lot::RwLock;
use tokio::sync::watch;

use super::{
    log::{Event, Log},
    ordered::{Key, Ordered, Scope},
};
use crate::meta::ResourceVersion;

/// What can be stored: something with a place in the order of lists.
pub trait Value: Send + Sync + 'static {
    /// Namespace; empty for a cluster-scoped object.
    fn namespace(&self) -> &str;
    /// Name within the namespace.
    fn name(&self) -> &str;
    /// About how many bytes the value takes in memory, for the bound of the log.
    fn weight(&self) -> usize;
}

/// A value and the version of the change that made it so.
#[derive(Debug, PartialEq, Eq)]
pub struct Stored<V> {
    /// Version of the last change to the object.
    pub version: ResourceVersion,
    /// The object.
    pub value: V,
}

/// One change to commit.
#[derive(Debug)]
pub enum Change<V> {
    /// The object is now this, whether or not it was there.
    Put(V),
    /// The object is gone; no change when it was not there.
    Delete(Key),
}

/// Bounds of the log. What is older cannot be watched from or read at.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of changes.
    pub events: usize,
    /// Sum of the values' weights.
    pub weight_bytes: usize,
}

impl Default for Limits {
    /// 65 536 changes, a minute at 1 000 a second, and 64 MiB.
    fn default() -> Self {
        Self {
            events: 65_536,
            weight_bytes: 64 << 20,
        }
    }
}

/// The version asked for is older than the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: the oldest is {oldest}")]
pub struct Expired {
    /// The oldest version that can be read.
    pub oldest: ResourceVersion,
}

/// A part of a list.
#[derive(Debug)]
pub struct Page<V> {
    /// The objects, in order.
    pub items: Vec<Arc<Stored<V>>>,
    /// Whether there is more behind the last item.
    pub more: bool,
}

/// Objects of one resource, shared between the writer and any number of readers.
#[derive(Debug)]
pub struct Store<V> {
    // Held for one lookup, one bounded page or one commit; never over an await.
    state: RwLock<State<V>>,
    head_tx: watch::Sender<ResourceVersion>,
}

#[derive(Debug)]
struct State<V> {
    objects: Ordered<Arc<Stored<V>>>,
    log: Log<V>,
    head: ResourceVersion,
}

impl<V: Value> Store<V> {
    /// An empty store whose first change gets the version after `start`.
    pub fn new(start: ResourceVersion, limits: Limits) -> Self {
        let state = State {
            objects: Ordered::default(),
            log: Log::new(start, limits),
            head: start,
        };
        Self {
            state: RwLock::new(state),
            head_tx: watch::Sender::new(start),
        }
    }

    /// Makes the changes one after the other, each with a version of its own, and wakes the watchers once.
    ///
    /// Returns the objects as stored by each [`Change::Put`] and the last states of those deleted, in the order of the
    /// changes; a deletion of what is not there yields nothing.
    pub fn commit(&self, changes: impl IntoIterator<Item = Change<V>>) -> Vec<Arc<Event<V>>> {
        let mut state = self.state.write();
        let events: Vec<_> = changes
            .into_iter()
            .filter_map(|change| state.apply(change))
            .collect();
        let head = state.head;
        drop(state);
        if !events.is_empty() {
            // A racing commit may have announced a later head already; the head only moves forward.
            self.head_tx.send_if_modified(|known| {
                let newer = head > *known;
                *known = head.max(*known);
                newer
            });
        }
        events
    }

    /// Makes this the object's state, and gives it as stored.
    pub fn put(&self, value: V) -> Arc<Stored<V>> {
        let events = self.commit([Change::Put(value)]);
        let event = events.into_iter().next();
        let event = event.expect("what is put is an event");
        event.object().clone()
    }

    /// Replaces an object by one in which no reader sees a difference: without a version, an event or a wake-up. One that is
    /// not there is put.
    pub fn amend(&self, value: V) -> Arc<Stored<V>> {
        let mut state = self.state.write();
        let known = state.objects.get(value.namespace(), value.name());
        let Some(version) = known.map(|known| known.version) else {
            drop(state);
            return self.put(value);
        };
        let amended = Arc::new(Stored { version, value });
        let (namespace, name) = (amended.value.namespace(), amended.value.name());
        state.objects.insert(namespace, name, amended.clone());
        amended
    }

    /// Forgets the past: what was committed so far can be read only as it is now.
    ///
    /// For the end of loading, before anybody reads.
    pub fn forget_history(&self) {
        let mut state = self.state.write();
        let head = state.head;
        state.log.clear(head);
    }

    /// The version of the newest change.
    pub fn head(&self) -> ResourceVersion {
        self.state.read().head
    }

    /// The oldest version that can be read or watched from.
    pub fn oldest(&self) -> ResourceVersion {
        self.state.read().log.floor()
    }

    /// Number of objects in `scope` now.
    pub fn count(&self, scope: &Scope) -> usize {
        self.state.read().objects.len_in(scope)
    }

    /// The version of the newest change, and the number of objects in `scope` then.
    pub fn head_with_count(&self, scope: &Scope) -> (ResourceVersion, usize) {
        let state = self.state.read();
        (state.head, state.objects.len_in(scope))
    }

    /// Number of objects that a namespace would have now if those of these names, each told once, were among them.
    pub fn count_with<'a>(
        &self,
        namespace: &str,
        names: impl IntoIterator<Item = &'a str>,
    ) -> usize {
        let state = self.state.read();
        let missing = names
            .into_iter()
            .filter(|name| state.objects.get(namespace, name).is_none());
        missing.count() + state.objects.len_in(&Scope::Namespace(namespace.into()))
    }

    /// The object as it is now.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Stored<V>>> {
        self.state.read().objects.get(namespace, name).cloned()
    }

    /// At most `limit` objects of `scope` behind `after`, as they were right after the change `at`.
    ///
    /// # Errors
    /// [`Expired`] when the log no longer reaches back to `at`.
    pub fn page(
        &self,
        scope: &Scope,
        after: Option<&Key>,
        at: ResourceVersion,
        limit: usize,
    ) -> Result<Page<V>, Expired> {
        let state = self.state.read();
        state.check(at)?;
        if at >= state.head {
            let objects = state.objects.range(scope, after);
            return Ok(collect(objects.map(|(_, _, object)| object), limit));
        }
        Ok(collect(state.objects_at(scope, after, at), limit))
    }

    /// Number of objects of `scope` behind `after`, as they were right after the change `at`. Counts one by one.
    ///
    /// # Errors
    /// [`Expired`] when the log no longer reaches back to `at`.
    pub fn count_after(
        &self,
        scope: &Scope,
        after: &Key,
        at: ResourceVersion,
    ) -> Result<usize, Expired> {
        let state = self.state.read();
        state.check(at)?;
        Ok(state.objects_at(scope, Some(after), at).count())
    }

    /// At most `max` changes after `version`, in order; empty when there is none yet, also for a version of the future.
    ///
    /// # Errors
    /// [`Expired`] when some of them have left the log.
    pub fn changes_after(
        &self,
        version: ResourceVersion,
        max: usize,
    ) -> Result<Vec<Arc<Event<V>>>, Expired> {
        self.state.read().log.after(version, max)
    }

    /// Follows the head: the receiver is woken after every commit.
    pub fn subscribe(&self) -> watch::Receiver<ResourceVersion> {
        self.head_tx.subscribe()
    }
}

impl<V: Value> State<V> {
    fn check(&self, at: ResourceVersion) -> Result<(), Expired> {
        let oldest = self.log.floor();
        if at < oldest {
            return Err(Expired { oldest });
        }
        Ok(())
    }

    /// The objects as they were at a version in the log: what is there now, with the later changes taken back.
    fn objects_at<'a>(
        &'a self,
        scope: &'a Scope,
        after: Option<&'a Key>,
        at: ResourceVersion,
    ) -> impl Iterator<Item = &'a Arc<Stored<V>>> {
        let objects = self.objects.range(scope, after);
        let changed = self.log.by_key().range(scope, after);
        merge(objects, changed).filter_map(move |(now, events)| {
            let later = events.and_then(|events| events.iter().find(|event| event.version() > at));
            later.map_or(now, |event| event.before())
        })
    }

    fn apply(&mut self, change: Change<V>) -> Option<Arc<Event<V>>> {
        let version = self.head.next();
        let (before, after) = match change {
            Change::Put(value) => {
                let after = Arc::new(Stored { version, value });
                let (namespace, name) = (after.value.namespace(), after.value.name());
                (
                    self.objects.insert(namespace, name, after.clone()),
                    Some(after),
                )
            }
            Change::Delete(key) => (self.objects.remove(&key.namespace, &key.name), None),
        };
        let event = Arc::new(Event::new(version, before, after)?);
        self.head = version;
        self.log.push(event.clone());
        Some(event)
    }
}

fn collect<'a, V: 'a>(
    mut objects: impl Iterator<Item = &'a Arc<Stored<V>>>,
    limit: usize,
) -> Page<V> {
    let items: Vec<_> = objects.by_ref().take(limit).cloned().collect();
    Page {
        more: items.len() == limit && objects.next().is_some(),
        items,
    }
}

type Entry<'a, T> = (&'a str, &'a str, &'a T);
type Events<V> = VecDeque<Arc<Event<V>>>;

/// Joins what is there now with what changed lately, key by key; a deleted object has only changes, a quiet one none.
fn merge<'a, V: Value>(
    objects: impl Iterator<Item = Entry<'a, Arc<Stored<V>>>>,
    changed: impl Iterator<Item = Entry<'a, Events<V>>>,
) -> impl Iterator<Item = (Option<&'a Arc<Stored<V>>>, Option<&'a Events<V>>)> {
    let (mut objects, mut changed) = (objects.peekable(), changed.peekable());
    std::iter::from_fn(move || {
        let order = match (objects.peek(), changed.peek()) {
            (Some((ns, name, _)), Some((other_ns, other_name, _))) => {
                (ns, name).cmp(&(other_ns, other_name))
            }
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        let object = if order.is_le() { objects.next() } else { None };
        let events = if order.is_ge() { changed.next() } else { None };
        Some((
            object.map(|(_, _, object)| object),
            events.map(|(_, _, events)| events),
        ))
    })
}
