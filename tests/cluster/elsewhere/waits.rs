//! Clients that wait for a sandbox, and for how long.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    kubectl::In,
    stage::{self, TEMPLATE, collection, item, sandbox},
};

/// How much later than said something may end on a busy machine.
const LATE: Duration = Duration::from_secs(4);

// kubernetes/kubernetes#120282
#[tokio::test]
async fn a_wait_for_what_never_comes_ends_when_it_said() {
    let stage = stage::shared().await;
    let here = In::new(&stage, "never").await;
    here.feed(&["create", "-f-"], &sandbox("asleep", TEMPLATE))
        .await;
    let pause = format!("{}/pause", item(&here.namespace, "asleep"));
    stage.admin().post(&pause, &json!({})).await.ok();
    let within = Duration::from_secs(9);
    let began = Instant::now();
    let wait = [
        "wait",
        "--for=condition=Ready",
        "sandbox/asleep",
        "--timeout=9s",
    ];
    let complaint = here.refused(&wait, &Value::Null).await;
    assert!(complaint.contains("timed out"), "{complaint}");
    let took = began.elapsed();
    assert!(took >= within && took < within + LATE, "{took:?}");

    let all = collection(&here.namespace);
    let began = Instant::now();
    let mut events = stage
        .admin()
        .watch(&format!("{all}?watch=1&timeoutSeconds=5"))
        .await;
    assert_eq!(events.next().await.unwrap_or_default()["type"], "ADDED");
    assert_eq!(events.next().await, None, "it ends in order");
    let took = began.elapsed();
    assert!((4..9).contains(&took.as_secs()), "{took:?}");
}

// kubernetes/kubernetes#120282
#[tokio::test]
async fn a_wait_for_the_end_returns_as_soon_as_the_node_has_released() {
    let stage = stage::shared().await;
    let (here, node) = (In::new(&stage, "releasing").await, stage.own_node());
    here.feed(&["create", "-f-"], &sandbox("slow", &node.template))
        .await;
    let late = json!([{"kind": {"late": {"millis": 1500}}, "path": "/v1/sandboxes/*/release", "times": 1}]);
    stage.nodes.set_faults(node.index, late).await;
    let wait = ["wait", "--for=delete", "sandbox/slow", "--timeout=30s"];
    let path = item(&here.namespace, "slow");
    let waiting = async {
        here.run(&wait).await;
        let returned = Instant::now();
        // And not before.
        let shown = stage.direct().get(&path).await;
        shown.expect(404, "NotFound");
        assert_eq!(stage.nodes.held(&here.namespace).await, []);
        returned
    };
    let released = async {
        here.run(&["delete", "sandbox", "slow", "--wait=false"])
            .await;
        stage::eventually(Duration::from_secs(20), "it is gone", async || {
            stage.direct().get(&path).await.status == 404
        })
        .await;
        Instant::now()
    };
    let (returned, released) = tokio::join!(waiting, released);
    let after = returned.saturating_duration_since(released);
    assert!(after < LATE, "{after:?}");
}
