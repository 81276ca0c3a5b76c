//! Publishing the nodes' inventories to a kube-apiserver, as a node agent would.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use tokio::task::JoinHandle;

use super::{Error, Fleet, Handle, Result};
use crate::api::{EXTENSIONS_GROUP, NodeInventory, V1BETA1};

/// Field manager of everything that is published.
pub const FIELD_MANAGER: &str = "sandbox-sim";
/// Publications under way at once.
const AT_ONCE: usize = 16;
/// How long kube-apiserver may take for one.
const WITHIN: Duration = Duration::from_secs(10);

/// Publishes the inventories of a fleet, until it is dropped.
pub struct Publisher {
    inventories: Api<NodeInventory>,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Publishes every node's inventory at once and then every `period`; a period of zero publishes once. A node that is
    /// stopped is left out. A publication that fails is logged and left to the next period.
    pub fn start(fleet: &Fleet, client: Client, period: Duration) -> Self {
        let inventories: Api<NodeInventory> = Api::all(client);
        let nodes: Arc<[Handle]> = fleet.nodes().into();
        let task = tokio::spawn(publish_always(inventories.clone(), nodes, period));
        Self { inventories, task }
    }

    /// Publishes one node's inventory as it is now.
    ///
    /// # Errors
    /// [`Error::Publish`] when kube-apiserver refuses, [`Error::PublishSilent`] without an answer in 10 s.
    pub async fn publish_now(&self, node: &Handle) -> Result<()> {
        publish(&self.inventories, node).await
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn publish_always(inventories: Api<NodeInventory>, nodes: Arc<[Handle]>, period: Duration) {
    loop {
        futures::stream::iter(nodes.iter())
            .for_each_concurrent(AT_ONCE, async |node| {
                // Of a daemon that is stopped nobody could say what it holds now.
                if node.is_up()
                    && let Err(error) = publish(&inventories, node).await
                {
                    tracing::warn!(error = &error as &dyn std::error::Error, "not published");
                }
            })
            .await;
        if period.is_zero() {
            return;
        }
        tokio::time::sleep(period).await;
    }
}

async fn publish(inventories: &Api<NodeInventory>, node: &Handle) -> Result<()> {
    let name = node.name().as_str();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(applied(&node.inventory()));
    match tokio::time::timeout(WITHIN, inventories.patch(name, &params, &patch)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(source)) => Err(Error::Publish {
            node: name.to_owned(),
            source: Box::new(source),
        }),
        Err(_) => Err(Error::PublishSilent {
            node: name.to_owned(),
        }),
    }
}

/// The inventory with its type, which server-side apply wants in the body.
fn applied(inventory: &NodeInventory) -> serde_json::Value {
    let mut object = serde_json::to_value(inventory).expect("an inventory is plain JSON");
    object["apiVersion"] = format!("{EXTENSIONS_GROUP}/{V1BETA1}").into();
    object["kind"] = "NodeInventory".into();
    object
}
