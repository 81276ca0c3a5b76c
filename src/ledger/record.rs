//! One node's record, as it is read and written.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Error, Result};
use crate::api::{ClaimId, EXTENSIONS_GROUP, NodeInventory, NodeName, V1BETA1};

/// Owner of `releases`.
const FIELD_MANAGER: &str = "sandbox-apiserver";
/// Inventories in one page of metadata, which is some 500 bytes each.
const PAGE: u32 = 500;
/// Calls to kube-apiserver at once.
pub(super) const AT_ONCE: usize = 16;
/// How long it may take for one.
const WITHIN: Duration = Duration::from_secs(5);

/// The records of all nodes that have one.
pub(super) async fn read_all(client: &Client) -> Result<Vec<(NodeName, BTreeSet<ClaimId>)>> {
    let resource = ApiResource::erase::<NodeInventory>(&());
    let inventories: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let reads = recorded_nodes(&inventories).await?.into_iter();
    let reads = reads.map(|node| read(&inventories, node));
    let records = futures::stream::iter(reads).buffer_unordered(AT_ONCE);
    records
        .try_filter(|(_, claims)| std::future::ready(!claims.is_empty()))
        .try_collect()
        .await
}

/// Makes `claims` the record of the node. One whose inventory is gone has none.
pub(super) async fn write(
    client: &Client,
    node: &NodeName,
    claims: &BTreeSet<ClaimId>,
) -> Result<()> {
    let inventories: Api<NodeInventory> = Api::all(client.clone());
    let mut inventory = json!({
        "apiVersion": format!("{EXTENSIONS_GROUP}/{V1BETA1}"),
        "kind": "NodeInventory",
    });
    // Applied without the field, the manager has no entry any more.
    if !claims.is_empty() {
        inventory["releases"] = claims.iter().map(ClaimId::as_str).collect();
    }
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(inventory);
    match timeout(
        WITHIN,
        inventories.patch_metadata(node.as_str(), &params, &patch),
    )
    .await?
    {
        Ok(_) => Ok(()),
        // Whoever may not create an inventory is told so when it is not there.
        Err(kube::Error::Api(status))
            if matches!(status.code, 403 | 404) && is_gone(&inventories, node).await? =>
        {
            Ok(())
        }
        Err(source) => Err(Error::Unwritten {
            node: node.clone(),
            source,
        }),
    }
}

async fn is_gone(inventories: &Api<NodeInventory>, node: &NodeName) -> Result<bool> {
    let found = timeout(WITHIN, inventories.get_metadata_opt(node.as_str())).await?;
    Ok(matches!(found, Ok(None)))
}

async fn recorded_nodes(inventories: &Api<DynamicObject>) -> Result<Vec<NodeName>> {
    let mut params = ListParams::default().limit(PAGE);
    let mut recorded = Vec::new();
    loop {
        let page = timeout(WITHIN, inventories.list_metadata(&params)).await?;
        let page = page.map_err(Error::Unlisted)?;
        let found = page.items.into_iter().map(|object| object.metadata);
        recorded.extend(
            found
                .filter(has_record)
                .filter_map(|metadata| Some(metadata.name?.into())),
        );
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(recorded);
        }
    }
}

fn has_record(metadata: &ObjectMeta) -> bool {
    let mut managers = metadata.managed_fields.iter().flatten();
    managers.any(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER))
}

async fn read(
    inventories: &Api<DynamicObject>,
    node: NodeName,
) -> Result<(NodeName, BTreeSet<ClaimId>)> {
    match timeout(WITHIN, inventories.get_opt(node.as_str())).await? {
        Ok(found) => {
            // Read as far as it can be: the rest of the object is somebody else's, who may have written anything.
            let releases = found.as_ref().map(|inventory| &inventory.data["releases"]);
            let releases = releases.and_then(Value::as_array).into_iter().flatten();
            let claims = releases.filter_map(Value::as_str).map(ClaimId::from);
            Ok((node, claims.collect()))
        }
        Err(source) => Err(Error::Unread { node, source }),
    }
}
