//! ResourceQuotas: what a namespace may have, whichever way it is made.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    caller::{Answer, Caller},
    claims,
    kubectl::In,
    stage::{self, OwnNode, SharedStage, collection, eventually, item, sandbox},
    warm_pools::{driven, fill},
};

const SOON: Duration = Duration::from_secs(30);
const SANDBOXES: &str = "count/sandboxes.agents.x-k8s.io";
const SNAPSHOTS: &str = "count/sandboxsnapshots.agents.x-k8s.io";
const MERGE: &str = "application/merge-patch+json";

fn quotas(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/resourcequotas")
}

fn mk_quota(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec})
}

/// Writes the quota of a namespace; what it allows of either resource.
async fn set(admin: &Caller, namespace: &str, hard: &Value) {
    let path = format!("{}/own", quotas(namespace));
    let quota = mk_quota("own", &json!({"hard": hard}));
    match admin.get(&path).await.status.as_u16() {
        404 => admin.post(&quotas(namespace), &quota).await.ok(),
        _ => admin.call("PUT", &path, Some(&quota)).await.ok(),
    };
}

/// Waits until a dry run of a create is answered so.
async fn until(admin: &Caller, namespace: &str, code: u16) {
    let dry = format!("{}?dryRun=All", collection(namespace));
    let wanted = sandbox("probe", stage::TEMPLATE);
    eventually(SOON, "the quota is known", async || {
        admin.post(&dry, &wanted).await.status == code
    })
    .await;
}

#[track_caller]
fn check_refused(answer: &Answer, subject: &str, rest: &str) {
    answer.expect(403, "Forbidden");
    let expected = format!("{subject} is forbidden: exceeded quota: {rest}");
    assert_eq!(answer.body["message"], expected);
}

/// Of sandboxes: the words of a refusal behind the quota's name.
fn counts(requested: usize, used: usize, limited: usize) -> String {
    format!(
        "requested: {SANDBOXES}={requested}, used: {SANDBOXES}={used}, limited: {SANDBOXES}={limited}"
    )
}

/// A namespace with a node of its own and a quota.
struct Case {
    stage: SharedStage,
    admin: Caller,
    namespace: String,
    node: OwnNode,
}

impl Case {
    async fn new(prefix: &str) -> Self {
        let stage = stage::shared().await;
        Self {
            admin: stage.admin(),
            namespace: stage.namespace(prefix).await,
            node: stage.own_node(),
            stage,
        }
    }

    /// Allows so many sandboxes, one of which at least there is room for.
    async fn allow(&self, sandboxes: usize) {
        set(&self.admin, &self.namespace, &json!({SANDBOXES: "0"})).await;
        until(&self.admin, &self.namespace, 403).await;
        let hard = json!({SANDBOXES: sandboxes.to_string()});
        set(&self.admin, &self.namespace, &hard).await;
        until(&self.admin, &self.namespace, 201).await;
    }

    async fn create(&self, name: &str) -> Answer {
        let wanted = sandbox(name, &self.node.template);
        self.admin.post(&collection(&self.namespace), &wanted).await
    }

    async fn act(&self, name: &str, action: &str, options: &Value) -> Answer {
        let path = format!("{}/{action}", item(&self.namespace, name));
        self.admin.post(&path, options).await
    }

    /// How many VMs the node has given to the namespace, over all time.
    async fn n_granted(&self) -> usize {
        let journal = self.stage.nodes.journal(self.node.index, 0).await;
        let own = format!("{}/", self.namespace);
        let granted = journal.iter().filter(|entry| {
            let claim_ref = entry["claimRef"].as_str().unwrap_or_default();
            entry["event"] == "granted" && claim_ref.starts_with(&own)
        });
        granted.count()
    }
}

#[tokio::test]
async fn of_ten_creates_at_once_under_a_quota_of_two_exactly_two_get_a_vm() {
    let case = Case::new("quota").await;
    case.allow(2).await;
    let at = In {
        stage: &case.stage,
        kubectl: case.stage.control_plane.kubectl(),
        namespace: case.namespace.clone(),
    };
    let creates = (0..10).map(|n| {
        let wanted = sandbox(&format!("box-{n}"), &case.node.template);
        let args = ["create", "--filename=-"];
        let at = &at;
        async move {
            let args = at.args(&args);
            let kubectl = &at.kubectl;
            kubectl.run_with_input(&args, &wanted.to_string()).await
        }
    });
    let outputs = join_all(creates).await;
    let (made, refused): (Vec<_>, Vec<_>) =
        outputs.iter().partition(|output| output.status.success());
    assert_eq!((made.len(), refused.len()), (2, 8));
    for output in refused {
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("is forbidden: exceeded quota: own"), "{told}");
    }
    let listed = case.admin.get(&collection(&case.namespace)).await.ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(case.n_granted().await, 2);
}

#[tokio::test]
async fn a_create_over_a_quota_is_refused_in_kubernetes_own_words_and_asks_no_node() {
    let case = Case::new("quota").await;
    case.allow(1).await;
    case.create("a").await.ok();
    for query in ["", "?dryRun=All"] {
        let path = format!("{}{query}", collection(&case.namespace));
        let wanted = sandbox("b", &case.node.template);
        let refused = case.admin.post(&path, &wanted).await;
        let rest = format!("own, {}", counts(1, 1, 1));
        check_refused(&refused, r#"sandboxes.agents.x-k8s.io "b""#, &rest);
        let details = json!({"name": "b", "group": "agents.x-k8s.io", "kind": "sandboxes"});
        assert_eq!(refused.body["details"], details);
    }
    assert_eq!(case.n_granted().await, 1);
    // One whose create fails, and one that is deleted, leave their places to others.
    case.allow(2).await;
    let fault = json!({"status": {"status": 400}});
    let nodes = case.stage.nodes;
    nodes.fail_once(case.node.index, fault, "/v1/claim").await;
    assert!(!case.create("fails").await.status.is_success());
    case.create("b").await.ok();
    assert_eq!(case.create("c").await.status, 403);
    case.admin.delete(&item(&case.namespace, "a")).await.ok();
    case.create("c").await.ok();
    // Nothing but creates is refused, and what a finalizer keeps counts.
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    let merge = async |body: &Value| {
        let request =
            http::Request::patch(item(&case.namespace, "b")).header("content-type", MERGE);
        let body = kube::client::Body::from(body.to_string().into_bytes());
        case.admin.send(request.body(body).unwrap()).await.ok()
    };
    merge(&held).await;
    case.admin.delete(&item(&case.namespace, "b")).await.ok();
    assert_eq!(case.create("d").await.status, 403);
    merge(&json!({"metadata": {"finalizers": null}})).await;
    case.create("d").await.ok();
    set(&case.admin, &case.namespace, &json!({SANDBOXES: "0"})).await;
    until(&case.admin, &case.namespace, 403).await;
    case.act("c", "pause", &json!({})).await.ok();
    case.admin.delete(&item(&case.namespace, "c")).await.ok();
}

#[tokio::test]
async fn a_quota_that_is_not_about_sandboxes_or_has_gone_refuses_none() {
    let case = Case::new("quota").await;
    set(&case.admin, &case.namespace, &json!({SANDBOXES: "0"})).await;
    until(&case.admin, &case.namespace, 403).await;
    // Of several the first by name that refuses is named.
    let none = json!({"hard": {SANDBOXES: "0"}});
    let another = mk_quota("another", &none);
    case.admin
        .post(&quotas(&case.namespace), &another)
        .await
        .ok();
    eventually(SOON, "the second one is known", async || {
        let refused = case.create("a").await;
        let text = refused.body["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        text.contains("exceeded quota: another,")
    })
    .await;
    let path = format!("{}/another", quotas(&case.namespace));
    case.admin.delete(&path).await.ok();
    let elsewhere = json!({SNAPSHOTS: "0", "pods": "0", "count/sandboxes.example.com": "0"});
    set(&case.admin, &case.namespace, &elsewhere).await;
    until(&case.admin, &case.namespace, 201).await;
    case.create("a").await.ok();
}

#[tokio::test]
async fn forks_and_snapshots_count_and_their_repetition_does_not() {
    let case = Case::new("quota").await;
    case.allow(4).await;
    case.create("a").await.ok();
    let refused = case.act("a", "fork", &json!({"count": 4})).await;
    let rest = format!("own, {}", counts(4, 1, 4));
    check_refused(&refused, r#"sandboxes.agents.x-k8s.io "a""#, &rest);
    let path = format!("{}/fork?dryRun=All", item(&case.namespace, "a"));
    let dry = case.admin.post(&path, &json!({"count": 4})).await;
    assert_eq!(dry.body, refused.body);
    let once = json!({"count": 3, "id": "once"});
    assert_eq!(case.act("a", "fork", &once).await.status, 201);
    assert_eq!(case.n_granted().await, 4);
    let again = case.act("a", "fork", &once).await;
    assert_eq!(again.status, 200, "{:#}", again.body);
    assert_eq!(again.body["items"].as_array().map(Vec::len), Some(3));
    assert_eq!(case.act("a", "fork", &json!({})).await.status, 403);

    let snapshots = format!(
        "{}/namespaces/{}/sandboxsnapshots",
        stage::API,
        case.namespace
    );
    eventually(SOON, "the nodes have told of their snapshots", async || {
        case.admin.get(&snapshots).await.status == 200
    })
    .await;
    let hard = json!({SNAPSHOTS: "1"});
    set(&case.admin, &case.namespace, &hard).await;
    until(&case.admin, &case.namespace, 201).await;
    let taken = json!({"name": "s1"});
    for _ in 0..2 {
        assert_eq!(case.act("a", "snapshot", &taken).await.status, 201);
    }
    let refused = case.act("a", "snapshot", &json!({"name": "s2"})).await;
    let rest =
        format!("own, requested: {SNAPSHOTS}=1, used: {SNAPSHOTS}=1, limited: {SNAPSHOTS}=1");
    check_refused(&refused, r#"sandboxsnapshots.agents.x-k8s.io "s2""#, &rest);
    let object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "SandboxSnapshot",
        "metadata": {"name": "s2"}, "spec": {"sandboxName": "a"},
    });
    let refused = case.admin.post(&snapshots, &object).await;
    check_refused(&refused, r#"sandboxsnapshots.agents.x-k8s.io "s2""#, &rest);
    case.admin.delete(&format!("{snapshots}/s1")).await.ok();
    case.admin.post(&snapshots, &object).await.ok();
}

#[tokio::test]
async fn copies_of_a_fork_whose_answer_is_lost_count_before_they_are_listed() {
    let case = Case::new("quota").await;
    case.allow(3).await;
    case.create("a").await.ok();
    let nodes = case.stage.nodes;
    let path = "/v1/sandboxes/*/fork";
    nodes
        .fail_once(case.node.index, json!("answerLost"), path)
        .await;
    let lost = case.act("a", "fork", &json!({"count": 2})).await;
    lost.expect(500, "InternalError");
    assert_eq!(case.n_granted().await, 3);
    let refused = case.create("b").await;
    let rest = format!("own, {}", counts(1, 3, 3));
    check_refused(&refused, r#"sandboxes.agents.x-k8s.io "b""#, &rest);
    case.stage.publish(case.node.index).await;
    let list = collection(&case.namespace);
    let listed = async || case.admin.get(&list).await.ok()["items"].clone();
    eventually(SOON, "the copies are listed", async || {
        listed().await.as_array().map(Vec::len) == Some(3)
    })
    .await;
    // They count twice for the moment until it is noticed, and never too little.
    eventually(SOON, "they count once", async || {
        let answer = case.create("b").await;
        answer.expect(403, "Forbidden");
        answer.body["message"] == refused.body["message"]
    })
    .await;
    case.admin.delete(&item(&case.namespace, "a")).await.ok();
    case.create("b").await.ok();
    assert_eq!(case.n_granted().await, 4);
}

#[tokio::test]
async fn a_claim_over_a_quota_says_so_and_is_bound_when_there_is_room() {
    let stage = driven(1).await;
    let (admin, namespace) = (stage.admin(), stage.namespace("quota").await);
    fill(&stage, &namespace, 4).await;
    set(&admin, &namespace, &json!({SANDBOXES: "0"})).await;
    until(&admin, &namespace, 403).await;
    for name in ["waits", "leaves"] {
        claims::create(&stage, &claims::claim(&namespace, name, "pool", None)).await;
        eventually(SOON, "it says what it waits for", async || {
            claims::ready(&stage, &namespace, name).await == "False QuotaExceeded"
        })
        .await;
    }
    let claim = admin.get(&claims::path(&namespace, "waits")).await.ok();
    let told = claim["status"]["conditions"][0]["message"].as_str();
    let expected = format!("exceeded quota: own, {}", counts(1, 0, 0));
    assert_eq!(told, Some(expected.as_str()));
    let kubectl = stage.control_plane.kubectl();
    let delete = ["delete", "sandboxclaim/leaves", "--namespace", &namespace];
    kubectl.stdout(&delete).await;
    set(&admin, &namespace, &json!({SANDBOXES: "1"})).await;
    eventually(SOON, "it is bound", async || {
        claims::ready(&stage, &namespace, "waits").await == "True DependenciesReady"
    })
    .await;
    let asked = stage.nodes.requests(0, "POST").await;
    let claims = asked.iter().filter(|(path, _)| path == "/v1/claim");
    assert_eq!(claims.count(), 1, "{asked:?}");
}
