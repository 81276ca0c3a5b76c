//! What the warm pools stand for, read when somebody claims from one and kept for a while.
//!
//! A claim waits for kube-apiserver only when its pool was not claimed from here for a minute. What is older than ten seconds is
//! read again beside the claim: a template that changes is believed as late as a right that is taken away.

use std::{collections::HashMap, sync::Arc, time::Duration};

use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::answer::Refusal;
use crate::api::{PoolKey, SandboxTemplate, SandboxWarmPool, pool_key_of_pool};

/// How long an answer is believed without another look.
const FRESH: Duration = Duration::from_secs(10);
/// How long it may be used while the other look is under way.
const USABLE: Duration = Duration::from_secs(60);
/// How long the answer that there is no pool is believed, and for how long nobody asks again after a failure: who waited behind
/// the one that failed would each wait as long once more.
const FRESH_ABSENCE: Duration = Duration::from_secs(1);
/// How long both reads may take.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// Pools that are remembered; those that were not used for a minute make room.
const MAX_POOLS: usize = 4_096;

#[derive(Clone)]
pub(super) struct Pools {
    client: Client,
    // Held for one look-up, never over an await.
    slots: Arc<Mutex<HashMap<Name, Arc<Slot>>>>,
}

/// Namespace and name of a SandboxWarmPool.
type Name = (String, String);

#[derive(Default)]
struct Slot {
    /// Held while kube-apiserver is asked: one asks, the others wait for what it hears.
    asking: tokio::sync::Mutex<()>,
    // Held to read or to set it.
    known: Mutex<Option<Known>>,
}

#[derive(Clone)]
struct Known {
    /// What it stands for, or why it stands for nothing.
    answer: Result<PoolKey, Refusal>,
    read: Instant,
}

impl Known {
    fn is_fresh(&self) -> bool {
        let limit = match self.answer {
            Ok(_) => FRESH,
            Err(_) => FRESH_ABSENCE,
        };
        self.read.elapsed() < limit
    }

    fn is_usable(&self) -> bool {
        self.answer.is_ok() && self.read.elapsed() < USABLE
    }
}

impl Pools {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            slots: Arc::default(),
        }
    }

    /// The daemon's pool that a SandboxWarmPool stands for.
    ///
    /// # Errors
    /// [`Refusal::Fallback`] when it stands for none, [`Refusal::Unasked`] when kube-apiserver does not say.
    pub(super) async fn key_of(&self, namespace: &str, pool: &str) -> Result<PoolKey, Refusal> {
        let name = (namespace.to_owned(), pool.to_owned());
        let slot = self.slot(&name);
        let known = slot.known.lock().clone();
        match known {
            Some(known) if known.is_fresh() => known.answer,
            Some(known) if known.is_usable() => {
                self.refresh(name, slot);
                known.answer
            }
            _ => self.ask(&name, &slot).await,
        }
    }

    fn slot(&self, name: &Name) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if slots.len() >= MAX_POOLS && !slots.contains_key(name) {
            slots.retain(|_, slot| slot.known.lock().as_ref().is_some_and(Known::is_usable));
            if slots.len() >= MAX_POOLS {
                slots.clear();
            }
        }
        slots.entry(name.clone()).or_default().clone()
    }

    /// Asks beside the caller, unless somebody does.
    fn refresh(&self, name: Name, slot: Arc<Slot>) {
        let pools = self.clone();
        tokio::spawn(async move {
            if slot.asking.try_lock().is_ok() {
                let _ = pools.ask(&name, &slot).await;
            }
        });
    }

    async fn ask(&self, name: &Name, slot: &Slot) -> Result<PoolKey, Refusal> {
        let _asking = slot.asking.lock().await;
        if let Some(known) = slot.known.lock().clone().filter(Known::is_fresh) {
            return known.answer;
        }
        let read = timeout(READ_WITHIN, self.read(name)).await;
        let answer = match read {
            Ok(Ok(answer)) => answer.map_err(Refusal::fallback),
            Ok(Err(error)) => Err(unread(&error)),
            Err(_) => {
                tracing::warn!("a warm pool was not read in time");
                Err(Refusal::Unasked)
            }
        };
        let mut known = slot.known.lock();
        let is_failure = answer == Err(Refusal::Unasked);
        if !(is_failure && known.as_ref().is_some_and(Known::is_usable)) {
            *known = Some(Known {
                answer: answer.clone(),
                read: Instant::now(),
            });
        }
        answer
    }

    async fn read(&self, (namespace, name): &Name) -> kube::Result<Result<PoolKey, String>> {
        let pools: Api<SandboxWarmPool> = Api::namespaced(self.client.clone(), namespace);
        let Some(pool) = pools.get_opt(name).await? else {
            return Ok(Err(format!("there is no SandboxWarmPool {name:?}")));
        };
        let template = &pool.spec.sandbox_template_ref.name;
        let templates: Api<SandboxTemplate> = Api::namespaced(self.client.clone(), namespace);
        let Some(found) = templates.get_opt(template).await? else {
            return Ok(Err(format!("there is no SandboxTemplate {template:?}")));
        };
        Ok(pool_key_of_pool(name, &found).map_err(|error| error.to_string()))
    }
}

/// What a caller is told when a pool is not read. What the agent may not read, the claim controller may.
fn unread(error: &kube::Error) -> Refusal {
    let shown = error as &dyn std::error::Error;
    tracing::warn!(error = shown, "a warm pool cannot be read");
    match error {
        kube::Error::Api(status) if status.is_forbidden() => {
            Refusal::fallback("the agent may not read the warm pool")
        }
        _ => Refusal::Unasked,
    }
}
