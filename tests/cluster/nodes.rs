//! The simulated nodes as a test drives and inspects them.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};

/// The admin endpoint of the simulator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes {
    admin_port: u16,
}

/// A sandbox as its node holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) node: usize,
    pub(crate) id: String,
    /// `<namespace>/<name>`, as it was claimed.
    pub(crate) claim_ref: String,
}

impl Nodes {
    pub(crate) fn new(admin_port: u16) -> Self {
        Self { admin_port }
    }

    /// What every node holds in the namespace.
    pub(crate) async fn held(self, namespace: &str) -> Vec<Held> {
        let n_nodes = self.all().await.len();
        let mut held = Vec::new();
        for node in 0..n_nodes {
            held.extend(self.held_by(node, namespace).await);
        }
        held
    }

    /// What one node holds in the namespace.
    pub(crate) async fn held_by(self, node: usize, namespace: &str) -> Vec<Held> {
        let inventory = self.inventory(node).await;
        let entries = inventory["entries"].as_array().cloned().unwrap_or_default();
        let prefix = format!("{namespace}/");
        let held = entries.into_iter().map(|entry| Held {
            node,
            id: text(&entry["id"]),
            claim_ref: text(&entry["claimRef"]),
        });
        held.filter(|held| held.claim_ref.starts_with(&prefix))
            .collect()
    }

    /// What became of the node's VMs, from the entry with this place on.
    pub(crate) async fn journal(self, node: usize, since: u64) -> Vec<Value> {
        let path = format!("/nodes/{node}/journal/{since}");
        let entries = self.call("GET", &path, None).await;
        entries.as_array().cloned().unwrap_or_default()
    }

    /// Makes a sandbox behind everybody's back.
    pub(crate) async fn plant(self, node: usize, template: &str, claim_ref: &str, attempt: &str) {
        let metadata = json!({"sandbox.cocoonstack.io/attempt": attempt});
        let planted = json!({"template": template, "claimRef": claim_ref, "metadata": metadata});
        self.call("POST", &format!("/nodes/{node}/claims"), Some(planted))
            .await;
    }

    /// Loses a sandbox without a word; one that is gone already is not missed.
    pub(crate) async fn lose(self, node: usize, id: &str) {
        let path = format!("/nodes/{node}/claims/{id}");
        let _ = self.try_call("DELETE", &path, None).await;
    }

    pub(crate) async fn all(self) -> Vec<Value> {
        let nodes = self.call("GET", "/nodes", None).await;
        nodes.as_array().cloned().unwrap_or_default()
    }

    /// What the node would publish now.
    pub(crate) async fn inventory(self, node: usize) -> Value {
        self.call("GET", &format!("/nodes/{node}/inventory"), None)
            .await
    }

    /// The paths of the requests that the node got with this method, and how each ended.
    pub(crate) async fn requests(self, node: usize, method: &str) -> Vec<(String, String)> {
        let log = self.call("GET", &format!("/nodes/{node}/log"), None).await;
        let requests = log.as_array().cloned().unwrap_or_default();
        let wanted = requests
            .iter()
            .filter(|request| request["method"] == method);
        wanted
            .map(|request| (text(&request["path"]), text(&request["outcome"])))
            .collect()
    }

    /// Lets the next request of `path` meet the fault.
    pub(crate) async fn fail_once(self, node: usize, kind: Value, path: &str) {
        let fault = json!({"kind": kind, "path": path, "times": 1});
        self.set_faults(node, json!([fault])).await;
    }

    /// Replaces the node's faults, in the words of the simulator's `faults`.
    pub(crate) async fn set_faults(self, node: usize, faults: Value) {
        self.call("PUT", &format!("/nodes/{node}/faults"), Some(faults))
            .await;
    }

    pub(crate) async fn clear_faults(self, node: usize) {
        self.call("DELETE", &format!("/nodes/{node}/faults"), None)
            .await;
    }

    /// Takes the node off the network; what it holds stays.
    pub(crate) async fn stop(self, node: usize) {
        self.call("POST", &format!("/nodes/{node}/stop"), None)
            .await;
    }

    pub(crate) async fn start(self, node: usize) {
        self.call("POST", &format!("/nodes/{node}/start"), None)
            .await;
    }

    /// Sets a pool's warm VMs, and how many the node keeps warm.
    pub(crate) async fn set_pool(self, node: usize, template: &str, warm: u32, target: u32) {
        let pool = json!({"template": template, "net": "none", "size": "small", "warm": warm, "target": target});
        self.call("PUT", &format!("/nodes/{node}/pools"), Some(pool))
            .await;
    }

    /// Whether the simulator answers.
    pub(crate) async fn answer(self) -> bool {
        self.try_call("GET", "/nodes", None).await.is_ok()
    }

    async fn call(self, method: &str, path: &str, body: Option<Value>) -> Value {
        match self.try_call(method, path, body).await {
            Ok(answer) => answer,
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    async fn try_call(
        self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, Box<dyn std::error::Error>> {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let request = http::Request::builder()
            .method(method)
            .uri(format!("http://127.0.0.1:{}{path}", self.admin_port))
            .body(Full::new(body))?;
        let client: Client<HttpConnector, _> = Client::builder(TokioExecutor::new()).build_http();
        let response = client.request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            return Err(format!("{status} {}", String::from_utf8_lossy(&body)).into());
        }
        Ok(serde_json::from_slice(&body).unwrap_or(Value::Null))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
