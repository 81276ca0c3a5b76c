//! Promotion: a sandbox's state as a template of its node.

use std::sync::Arc;

use super::{
    Gateway, Progress, Result,
    lifecycle::{check_copyable, conflict},
};
use crate::{
    api::{NodeAddress, PoolKey},
    fleet::Sandbox,
    store::Stored,
};

impl Gateway {
    /// Makes a template of a sandbox, and gives what claims ask for to start from it. The sandbox goes on. Repeatable: a template of the
    /// name is replaced, and who asks again while it is made joins.
    ///
    /// # Errors
    /// See [`super::Error`].
    pub async fn promote(
        &self,
        record: Arc<Stored<Sandbox>>,
        template: String,
    ) -> Result<Progress<PoolKey>> {
        let sandbox = &record.value;
        if sandbox.deleted_at.is_some() {
            return Err(conflict("the sandbox is being deleted"));
        }
        check_copyable(
            sandbox,
            "it is promoted",
            "a failed sandbox cannot be promoted",
        )?;
        let address = self.address_of(sandbox)?;
        let (gateway, key) = (self.clone(), (sandbox.uid, template.clone()));
        let promotions = &self.inner.promotions;
        let work = promotions.join(&self.inner.tasks, key, "promotion", || {
            gateway.call_promote(record, address, template)
        });
        let work = work.map_err(|other| conflict(&format!("a {other} is under way")))?;
        self.wait_for(work).await
    }

    async fn call_promote(
        self,
        record: Arc<Stored<Sandbox>>,
        address: NodeAddress,
        template: String,
    ) -> Result<PoolKey> {
        let sandbox = &record.value;
        let _place = self.inner.copies.begin(&sandbox.node)?;
        let daemon = self
            .inner
            .daemons
            .node(&address, self.inner.options.long_call_timeout);
        let answer = daemon.promote(&sandbox.claim, &template).await;
        self.inner.metrics.called("promote", answer.is_ok());
        match answer {
            Ok(promoted) => Ok(promoted.key),
            Err(error) => Err(self.refused(sandbox, &address, error).await),
        }
    }
}
