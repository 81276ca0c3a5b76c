//! What the driver wrote to which node, in a ConfigMap.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Error, Result, members::Written};
use crate::{
    api::{NodeName, PoolKey},
    controller::within,
};

/// Name of the ConfigMap, and the field manager of what the driver writes.
const NAME: &str = "sandbox-apiserver-warm-pools";
/// The one key of its data.
const KEY: &str = "written.json";
/// How long kube-apiserver may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// The ConfigMap.
#[derive(Clone)]
pub(super) struct Record {
    api: Api<ConfigMap>,
    namespace: String,
}

/// Nodes that have the same pools. Most nodes have, so a fleet takes little more than its names.
#[derive(Serialize, Deserialize)]
struct Group {
    pools: BTreeSet<PoolKey>,
    nodes: BTreeSet<NodeName>,
}

impl Record {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
        }
    }

    /// What is on record; nothing when there is none.
    pub(super) async fn load(&self) -> Result<Written> {
        let found = within(DEADLINE, self.api.get_opt(NAME)).await?;
        let text = found.and_then(|found| found.data?.remove(KEY));
        text.map_or_else(
            || Ok(Written::new()),
            |text| {
                decode(&text).map_err(|source| Error::Unreadable {
                    name: format!("{}/{NAME}", self.namespace),
                    source,
                })
            },
        )
    }

    /// Makes this what is on record.
    pub(super) async fn save(&self, written: &Written) -> Result<()> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME},
            "data": {KEY: encode(written)},
        });
        let params = PatchParams::apply(NAME).force();
        let patch = Patch::Apply(&object);
        within(DEADLINE, self.api.patch(NAME, &params, &patch)).await?;
        Ok(())
    }
}

fn encode(written: &Written) -> String {
    let mut groups: BTreeMap<&BTreeSet<PoolKey>, BTreeSet<NodeName>> = BTreeMap::new();
    for (node, pools) in written {
        groups.entry(pools).or_default().insert(node.clone());
    }
    let groups: Vec<_> = groups
        .into_iter()
        .map(|(pools, nodes)| Group {
            pools: pools.clone(),
            nodes,
        })
        .collect();
    serde_json::to_string(&groups).expect("names and keys are plain JSON")
}

fn decode(text: &str) -> serde_json::Result<Written> {
    let groups: Vec<Group> = serde_json::from_str(text)?;
    let each = groups.into_iter().flat_map(|group| {
        let Group { pools, nodes } = group;
        nodes.into_iter().map(move |node| (node, pools.clone()))
    });
    Ok(each.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_groups_nodes_that_are_alike() {
        let key = |template: &str| PoolKey {
            template: template.into(),
            net: "none".into(),
            size: "small".into(),
        };
        let mut written = Written::new();
        for node in 0..1_000 {
            let name = format!("node-{node:04}").as_str().into();
            written.insert(name, [key("a"), key("b")].into());
        }
        written.insert("odd".into(), [key("a")].into());
        let text = encode(&written);
        assert_eq!(decode(&text).unwrap(), written);
        assert!(text.len() < 1_000 * 13 + 500, "{} bytes", text.len());
        assert!(decode("{}").is_err());
    }
}
