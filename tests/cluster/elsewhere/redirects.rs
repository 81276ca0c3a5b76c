//! Nodes that would send the server, and its token, somewhere else.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt as _, net::TcpListener, task::JoinHandle};

use crate::{
    caller::{Answer, Caller},
    stage::{self, NODE_TOKEN, collection, eventually, item, sandbox},
};

const SOON: Duration = Duration::from_secs(20);
const CLAIM: &str = "/v1/claim";

/// Somebody who waits for credentials.
struct Attacker {
    address: String,
    /// What each visitor said first.
    heard: Arc<Mutex<Vec<String>>>,
    listening: JoinHandle<()>,
}

impl Attacker {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let notes = heard.clone();
        let listening = tokio::spawn(async move {
            while let Ok((mut visitor, _)) = listener.accept().await {
                let mut words = vec![0; 4096];
                let n_read = visitor.read(&mut words).await.unwrap_or_default();
                let words = String::from_utf8_lossy(&words[..n_read]).into_owned();
                notes.lock().expect("nobody panics with it").push(words);
            }
        });
        Self {
            address,
            heard,
            listening,
        }
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

fn expect_refusal(what: &str, answer: &Answer) {
    assert!(
        answer.status.is_server_error(),
        "{what}: {} {:#}",
        answer.status,
        answer.body
    );
    assert!(answer.headers.get("location").is_none(), "{what}");
}

async fn merge(caller: &Caller, path: &str, patch: &Value) -> Answer {
    let request = http::Request::patch(path)
        .header("content-type", "application/merge-patch+json")
        .body(kube::client::Body::from(patch.to_string().into_bytes()));
    caller.send(request.expect("a request")).await
}

// kubernetes/kubernetes#112513
#[tokio::test]
async fn redirects_of_nodes_are_neither_followed_nor_passed_on() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("redirects").await, stage.own_node());
    let attacker = Attacker::start().await;
    let direct = stage.direct();
    let (path, wanted) = (collection(&namespace), sandbox("steady", &node.template));
    let away = |status: u16| json!({"httpRedirect": {"location": format!("http://{}/", attacker.address), "status": status}});
    let statuses = [301, 302, 303, 307, 308];
    let mut kinds: Vec<Value> = statuses.into_iter().map(away).collect();
    kinds.push(json!({"redirect": {"addresses": [attacker.address]}}));
    kinds.push(json!({"redirect": {"addresses": [format!("user@{}", attacker.address)]}}));
    for kind in kinds {
        let fault = json!([{"kind": kind, "path": CLAIM}]);
        stage.nodes.set_faults(node.index, fault).await;
        let answer = direct.post(&path, &wanted).await;
        expect_refusal(&kind.to_string(), &answer);
        stage.nodes.clear_faults(node.index).await;
    }
    eventually(SOON, "the node serves again", async || {
        direct.post(&path, &wanted).await.status == 201
    })
    .await;
    let one = item(&namespace, "steady");
    let asleep = item(&namespace, "asleep");
    direct
        .post(&path, &sandbox("asleep", &node.template))
        .await
        .ok();
    direct
        .post(&format!("{asleep}/pause"), &json!({}))
        .await
        .ok();
    let later = jiff::Timestamp::now() + Duration::from_secs(7200);
    let later = later.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    for status in statuses {
        let everything = json!([{"kind": away(status), "path": "/v1/sandboxes*"}]);
        stage.nodes.set_faults(node.index, everything).await;
        for (action, options) in [
            ("pause", json!({})),
            ("snapshot", json!({})),
            ("fork", json!({})),
            ("promote", json!({"template": "promoted:1"})),
            ("token", json!({})),
        ] {
            let answer = direct.post(&format!("{one}/{action}"), &options).await;
            expect_refusal(action, &answer);
        }
        let woken = direct.post(&format!("{asleep}/resume"), &json!({})).await;
        expect_refusal("resume", &woken);
        let renewed = merge(&direct, &one, &json!({"spec": {"shutdownTime": later}})).await;
        expect_refusal("renew", &renewed);
    }
    let pending = direct.delete(&one).await.ok();
    assert_eq!(pending["kind"], "Sandbox", "a redirect is no release");
    assert_eq!(stage.nodes.held(&namespace).await.len(), 2);
    stage.nodes.clear_faults(node.index).await;
    direct.delete(&path).await.ok();
    eventually(SOON, "both are released", async || {
        stage.nodes.held(&namespace).await.is_empty()
    })
    .await;
    let heard = attacker
        .heard
        .lock()
        .expect("nobody panics with it")
        .clone();
    assert!(heard.is_empty(), "{heard:?} with {NODE_TOKEN}");
}

// kubernetes/kubernetes#112513
#[tokio::test]
async fn a_claim_follows_a_node_to_its_peers_and_not_in_circles() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("peers").await;
    let (from, to) = (stage.own_node(), stage.own_node());
    stage.nodes.set_pool(to.index, &from.template, 1, 0).await;
    let address = async |node: usize| stage.nodes.inventory(node).await["address"].clone();
    let (here, there) = (address(from.index).await, address(to.index).await);
    let redirect = |to: &Value| json!([{"kind": {"redirect": {"addresses": [to]}}, "path": CLAIM}]);
    stage.nodes.set_faults(from.index, redirect(&there)).await;
    let (direct, path) = (stage.direct(), collection(&namespace));
    let created = direct
        .post(&path, &sandbox("moved", &from.template))
        .await
        .ok();
    assert_eq!(
        created["status"]["nodeName"],
        format!("sim-{:04}", to.index)
    );

    stage.nodes.set_faults(to.index, redirect(&here)).await;
    let claims = async |node: usize| {
        let requests = stage.nodes.requests(node, "POST").await;
        requests
            .into_iter()
            .filter(|(path, _)| path == CLAIM)
            .count()
    };
    let before = claims(from.index).await + claims(to.index).await;
    let answer = direct
        .post(&path, &sandbox("circling", &from.template))
        .await;
    answer.expect(503, "ServiceUnavailable");
    assert_eq!(answer.causes(), ["NoWarmCapacity"]);
    let asked = claims(from.index).await + claims(to.index).await - before;
    assert!(asked <= 2, "{asked} claims for one create");
    for node in [from.index, to.index] {
        stage.nodes.clear_faults(node).await;
    }
    direct.delete(&path).await.ok();
    assert_eq!(stage.nodes.held(&namespace).await, []);
}
