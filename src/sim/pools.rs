//! One node, locked for one operation: its warm pools.

use std::collections::BTreeMap;

use super::{Refusal, body::PoolBody, daemon::Daemon, size::pool_key};
use crate::api::PoolKey;

/// Bound on the pools of one node.
const MAX_POOLS: usize = 1_024;

impl Daemon<'_> {
    /// Replaces the set of pools. Nothing changes if any of them is refused.
    pub(super) fn put_pools(&mut self, bodies: &[PoolBody]) -> Result<(), Refusal> {
        if bodies.len() > MAX_POOLS {
            return Err(Refusal::bad("too many pools"));
        }
        let mut wanted = BTreeMap::new();
        for body in bodies {
            let (key, target, most) = self.check_pool(body)?;
            if wanted.insert(key, (target, most)).is_some() {
                return Err(Refusal::bad("duplicate pool"));
            }
        }
        let refill = self.options().latency.refill;
        self.state
            .pools
            .retain(|key, _| wanted.contains_key(&**key));
        for (key, (target, most)) in wanted {
            let shared = self.state.shared_key(&key);
            let pool = self.state.pools.entry(shared).or_default();
            (pool.target, pool.warm_max) = (target, most);
            pool.warm = pool.warm.min(target.max(most));
            self.state.top_up(&key, self.now, refill);
        }
        Ok(())
    }

    fn check_pool(&self, body: &PoolBody) -> Result<(PoolKey, u32, u32), Refusal> {
        let key = pool_key(&body.template, &body.net, &body.size)?;
        let count =
            |number: i64| u32::try_from(number).map_err(|_| Refusal::bad("negative number"));
        let (target, most) = (count(body.warm)?, count(body.warm_max)?);
        let idle = body.idle_hibernate_seconds;
        if idle
            .min(body.archive_after_seconds)
            .min(body.archive_delete_after_seconds)
            < 0
        {
            return Err(Refusal::bad("negative number"));
        }
        if most != 0 && most < target {
            return Err(Refusal::bad("warm_max is below warm"));
        }
        if idle > 0 && key.net == "egress" {
            return Err(Refusal::bad("an egress pool cannot hibernate"));
        }
        if body.archive_after_seconds > 0 && body.archive_after_seconds <= idle {
            return Err(Refusal::bad("archive_after must exceed idle_hibernate"));
        }
        if key.net == "egress" && !self.options().egress {
            return Err(Refusal::conflict("node has no egress attachment"));
        }
        Ok((key, target, most))
    }

    pub(super) fn set_draining(&mut self, draining: bool) {
        self.state.draining = draining;
        if draining {
            self.state.empty_pools();
            return;
        }
        let refill = self.options().latency.refill;
        let keys: Vec<_> = self.state.pools.keys().cloned().collect();
        for key in keys {
            self.state.top_up(&key, self.now, refill);
        }
    }
}
