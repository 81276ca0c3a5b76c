//! How many objects a namespace may have.
//!
//! kube-apiserver's own admission counts by the status of a ResourceQuota, which it writes with every create. Here the objects
//! themselves are counted, with those that are being made: they are at hand, the status is as old as the quota controller's
//! last look (five minutes), and a write to etcd for every sandbox is what this server is there to avoid. So a limit holds
//! from when it is written, and what is deleted makes room at once.
//!
//! A quota that is lowered below what there is stops creates and nothing else.

use std::{fmt, pin::pin, sync::Arc};

use compact_str::ToCompactString;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::{Mutex, RwLock};

use super::{
    Exceeded, QuotaReservation,
    limits::Limits,
    under_way::{Share, UnderWay},
};
use crate::{
    store::{Key, Store, Value},
    telemetry::{Check, Tasks},
};

/// A resource whose objects a quota may count.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// API group.
    pub group: &'a str,
    /// Name in paths.
    pub plural: &'a str,
}

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// An object, whose name must be free.
    New,
    /// An object, or the one of its name if that is there or being made already, which costs nothing.
    NewOrKnown,
    /// So many copies of an object, whose names nobody knows yet.
    Copies(u32),
}

/// The ResourceQuotas of the cluster. A clone is the same set.
#[derive(Clone, Debug)]
pub struct Quotas(Source);

#[derive(Clone, Debug)]
enum Source {
    Live(Arc<Live>),
    None,
}

#[derive(Debug, Default)]
struct Live {
    // Both are held for a look or for one event, never over an await. Whoever holds `under_way` may lock `limits` and a store, not the
    // reverse.
    limits: RwLock<Limits>,
    under_way: Arc<Mutex<UnderWay>>,
}

impl Quotas {
    /// Follows the cluster's quotas in a task of `tasks`. `check` passes with the first complete list.
    ///
    /// Needs `list` and `watch` on resourcequotas.
    pub fn follow(client: Client, tasks: &mut Tasks, check: Check) -> Self {
        let live = Arc::new(Live::default());
        tasks.spawn("quotas", live.clone().watch(Api::all(client), check));
        Self(Source::Live(live))
    }

    /// Nothing is limited. For a server without a cluster.
    pub fn none() -> Self {
        Self(Source::None)
    }

    /// The right to make the object of that key, or copies of it, beside all of its namespace that are in `store` or being made.
    /// Asks nobody; where nothing limits the resource it is one lookup.
    ///
    /// # Errors
    /// [`Exceeded`]: nothing must be made.
    pub fn admit<V: Value>(
        &self,
        counted: Counted<'_>,
        key: &Key,
        wanted: Wanted,
        store: &Store<V>,
    ) -> Result<QuotaReservation, Exceeded> {
        match &self.0 {
            Source::Live(live) if live.limits.read().concern(&key.namespace, counted) => {
                live.admit(counted, key, wanted, store)
            }
            _ => Ok(QuotaReservation::default()),
        }
    }
}

#[cfg(test)]
impl Quotas {
    /// Quotas that only [`Quotas::tell`] tells of.
    pub(super) fn follow_nobody() -> Self {
        Self(Source::Live(Arc::default()))
    }

    pub(super) fn tell(&self, event: watcher::Event<ResourceQuota>) {
        if let Source::Live(live) = &self.0 {
            live.limits.write().apply(event);
        }
    }
}

/// `sandboxes.agents.x-k8s.io`.
impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            "" => f.write_str(self.plural),
            group => write!(f, "{}.{group}", self.plural),
        }
    }
}

impl Counted<'_> {
    /// Whether this is the resource of a text such as `sandboxes.agents.x-k8s.io`.
    pub(super) fn is(self, text: &str) -> bool {
        let (plural, group) = text.split_once('.').unwrap_or((text, ""));
        plural == self.plural && group == self.group
    }
}

impl Live {
    fn admit<V: Value>(
        &self,
        counted: Counted<'_>,
        key: &Key,
        wanted: Wanted,
        store: &Store<V>,
    ) -> Result<QuotaReservation, Exceeded> {
        let place = (counted.to_compact_string(), key.namespace.clone());
        let is_known = |under_way: &UnderWay| {
            under_way.has(&place, &key.name) || store.get(&key.namespace, &key.name).is_some()
        };
        // Counted and taken in one step: of creates at the same moment no more pass than there is room for.
        let mut under_way = self.under_way.lock();
        // What is known counts already, and its name once. It is reserved nevertheless: it may be gone before this caller comes to it.
        let is_free = matches!(wanted, Wanted::NewOrKnown) && is_known(&under_way);
        let share = match wanted {
            Wanted::New | Wanted::NewOrKnown => Share::named(key.name.clone()),
            Wanted::Copies(count) => Share::unnamed(count as usize),
        };
        if !is_free {
            let n_used = under_way.count(&place, store) as u64;
            let limits = self.limits.read();
            limits.check(&key.namespace, counted, n_used, share.len() as u64)?;
        }
        Ok(QuotaReservation::begin(
            &self.under_way,
            &mut under_way,
            place,
            share,
        ))
    }

    async fn watch(self: Arc<Self>, api: Api<ResourceQuota>, check: Check) {
        let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    let complete = self.limits.write().apply(event);
                    if complete {
                        check.pass();
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "watching resourcequotas"
                    );
                }
            }
        }
    }
}
