//! A request that is made to both.

use serde_json::{Value, json};

pub(super) const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const OPERATIONS: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// A request. `{namespace}`, `{template}`, `{NAME.uid}` and `{NAME.resourceVersion}` stand for what is there.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) method: &'static str,
    /// Below the collection, or whole.
    pub(super) path: &'static str,
    pub(super) headers: Vec<(&'static str, &'static str)>,
    pub(super) body: String,
}

impl Step {
    pub(super) fn new(
        name: &'static str,
        method: &'static str,
        path: &'static str,
        content_type: &'static str,
        body: impl ToString,
    ) -> Self {
        Self {
            name,
            method,
            path,
            headers: vec![("content-type", content_type)],
            body: body.to_string(),
        }
    }

    pub(super) fn accept(mut self, accept: &'static str) -> Self {
        self.headers.push(("accept", accept));
        self
    }
}

/// A Sandbox with changes.
pub(super) fn with(name: &str, change: Value) -> Value {
    let mut object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "{template}"}]}}},
    });
    json_patch::merge(&mut object, &change);
    object
}

pub(super) fn plain(name: &str) -> Value {
    with(name, json!({}))
}

pub(super) fn get(name: &'static str, path: &'static str) -> Step {
    Step::new(name, "GET", path, JSON, "")
}

pub(super) fn post(name: &'static str, path: &'static str, body: impl ToString) -> Step {
    Step::new(name, "POST", path, JSON, body)
}

pub(super) fn put(name: &'static str, path: &'static str, body: impl ToString) -> Step {
    Step::new(name, "PUT", path, JSON, body)
}

pub(super) fn merge(name: &'static str, path: &'static str, body: impl ToString) -> Step {
    Step::new(name, "PATCH", path, MERGE, body)
}

pub(super) fn operations(name: &'static str, path: &'static str, body: impl ToString) -> Step {
    Step::new(name, "PATCH", path, OPERATIONS, body)
}

pub(super) fn apply(name: &'static str, path: &'static str, body: impl ToString) -> Step {
    Step::new(name, "PATCH", path, APPLY, body)
}

pub(super) fn delete(name: &'static str, path: &'static str, body: impl ToString) -> Step {
    Step::new(name, "DELETE", path, JSON, body)
}
