//! What the cluster's objects want, in the words of the planner.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::{api::resource::Quantity as Amount, apis::meta::v1::ObjectMeta},
};
use serde::Deserialize;

use super::plan::{Candidate, Demand};
use crate::{
    api::{NodeName, PoolKey, SandboxTemplate, SandboxWarmPool, partial, pool_key_of_template},
    meta::Quantity,
};

/// The unit of a node's weight: what its Pods may use of its memory in whole GiB, so that machines of one kind weigh the same.
const WEIGHT_UNIT: i64 = 1 << 30;
/// Replicas of a pool that says nothing.
const DEFAULT_REPLICAS: i32 = 1;

/// A Kubernetes Node: its labels and its memory; the rest is not even kept while it is read.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PlannedNode {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeStatus {
    #[serde(default)]
    allocatable: BTreeMap<String, Amount>,
}

/// Why a pool has no demand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoDemand {
    #[error("there is no SandboxTemplate {0:?} in the namespace")]
    TemplateNotFound(String),
    #[error("the template names no pool: {0}")]
    InvalidTemplate(#[from] crate::api::InvalidPoolKey),
}

/// What a pool wants.
pub(super) fn demand(
    pool: &SandboxWarmPool,
    template: Option<&SandboxTemplate>,
) -> Result<Demand, NoDemand> {
    let name = &pool.spec.sandbox_template_ref.name;
    let template = template.ok_or_else(|| NoDemand::TemplateNotFound(name.clone()))?;
    let pod = &template.spec.pod_template.spec;
    Ok(Demand {
        key: pool_key_of_template(template)?,
        replicas: replicas(pool),
        node_selector: pod.node_selector.clone().unwrap_or_default(),
    })
}

pub(super) fn replicas(pool: &SandboxWarmPool) -> u32 {
    u32::try_from(pool.spec.replicas.unwrap_or(DEFAULT_REPLICAS)).unwrap_or(0)
}

/// A node as the planner sees it. In a cluster without Node objects labels are unknown; in one with them, a node without one
/// has none.
pub(super) fn candidate(
    name: &NodeName,
    nodes: &HashMap<String, std::sync::Arc<PlannedNode>>,
    refuses: impl Iterator<Item = PoolKey>,
) -> Candidate {
    let node = nodes.get(name.as_str());
    let labels = node.and_then(|node| node.metadata.labels.clone());
    Candidate {
        name: name.clone(),
        labels: (!nodes.is_empty()).then(|| labels.unwrap_or_default()),
        weight: node.and_then(|node| node.weight()),
        refuses: refuses.collect(),
    }
}

impl PlannedNode {
    /// Leaves what is read of it.
    pub(super) fn slim(&mut self) {
        self.metadata.managed_fields = None;
        self.metadata.annotations = None;
        self.status.allocatable.retain(|key, _| key == "memory");
    }

    fn weight(&self) -> Option<u32> {
        let memory: Quantity = self.status.allocatable.get("memory")?.0.parse().ok()?;
        let units = u32::try_from(memory.multiples_of(WEIGHT_UNIT)).unwrap_or(u32::MAX);
        Some(units.max(1))
    }
}

partial!(PlannedNode, of Node);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn mk_pool(replicas: Option<i32>) -> SandboxWarmPool {
        let object = json!({"spec": {"replicas": replicas, "sandboxTemplateRef": {"name": "t"}}});
        serde_json::from_value(object).unwrap()
    }

    fn mk_template(spec: serde_json::Value) -> SandboxTemplate {
        let object = json!({"metadata": {"name": "t"}, "spec": {"podTemplate": {"spec": spec}}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_pool_wants_what_its_template_says() {
        let template = mk_template(json!({
            "containers": [{"name": "c", "image": "python:3.12"}], "nodeSelector": {"disk": "ssd"}}));
        let wanted = demand(&mk_pool(Some(30)), Some(&template)).unwrap();
        assert_eq!(wanted.key.to_string(), "python:3.12|none|small");
        assert_eq!(
            (wanted.replicas, wanted.node_selector["disk"].as_str()),
            (30, "ssd")
        );
        assert_eq!(demand(&mk_pool(None), Some(&template)).unwrap().replicas, 1);
    }

    #[test]
    fn a_pool_without_a_usable_template_wants_nothing() {
        let missing = demand(&mk_pool(None), None).unwrap_err();
        assert_eq!(missing, NoDemand::TemplateNotFound("t".to_owned()));
        let imageless = mk_template(json!({"containers": []}));
        let invalid = demand(&mk_pool(None), Some(&imageless)).unwrap_err();
        assert!(matches!(invalid, NoDemand::InvalidTemplate(_)), "{invalid}");
    }

    #[test]
    fn labels_and_memory_come_from_the_node_object() {
        let object = json!({"metadata": {"name": "a", "labels": {"disk": "ssd"}},
            "status": {"allocatable": {"memory": "65970860Ki", "cpu": "16"}}});
        let mut node: PlannedNode = serde_json::from_value(object).unwrap();
        node.slim();
        let nodes = HashMap::from([("a".to_owned(), Arc::new(node))]);
        let known = candidate(&"a".into(), &nodes, std::iter::empty());
        assert_eq!(
            (known.weight, known.labels.unwrap()["disk"].as_str()),
            (Some(62), "ssd")
        );
        let unknown = candidate(&"b".into(), &nodes, std::iter::empty());
        assert_eq!(
            (unknown.weight, unknown.labels),
            (None, Some(BTreeMap::new()))
        );
        let alone = candidate(&"b".into(), &HashMap::new(), std::iter::empty());
        assert_eq!(alone.labels, None);
    }
}
