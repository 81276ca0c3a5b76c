//! Credentials stay where they belong.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use http::Request;
use kube::client::Body;
use serde_json::json;

use crate::{
    access::readable_in,
    caller::Caller,
    stage::{self, NODE_TOKEN, collection, eventually, item},
};

const SOON: Duration = Duration::from_secs(20);

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

async fn text(caller: &Caller, path: &str, accept: &str) -> String {
    let request = Request::get(path).header("accept", accept);
    let answer = caller.send(request.body(Body::empty()).unwrap()).await;
    answer.ok().to_string()
}

// openclaw/crabbox#1026
#[tokio::test]
async fn a_sandboxes_token_is_shown_to_its_creator_and_to_nobody_else() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("secret").await;
    let (direct, one, all) = (
        stage.direct(),
        item(&namespace, "vault"),
        collection(&namespace),
    );
    let created = stage.create(&namespace, "vault").await;
    let annotations = &created["metadata"]["annotations"];
    let token = annotations["sandbox.cocoonstack.io/token"].as_str();
    let token = token.expect("the creator gets it").to_owned();
    assert!(token.len() > 8, "long enough to be looked for");

    let mut events = direct.watch(&format!("{all}?watch=1")).await;
    let mut shown = vec![events.next().await.unwrap_or_default().to_string()];
    readable_in(&stage, "--user=rhea", &namespace).await;
    let proxied = Caller::new(stage.control_plane.config_as("rhea"));
    let reader = stage.direct_as("rhea");
    eventually(SOON, "the role is in force", async || {
        reader.get(&one).await.status == 200
    })
    .await;
    for caller in [&direct, &reader, &proxied] {
        for (path, accept) in [
            (&one, "application/json"),
            (&one, "application/yaml"),
            (&one, TABLE),
            (&one, METADATA),
            (&all, "application/json"),
            (&all, TABLE),
            (&format!("{all}?includeObject=Object"), TABLE),
            (
                &format!("{all}?watch=1&timeoutSeconds=1"),
                "application/json",
            ),
            (&format!("{all}?watch=1&timeoutSeconds=1"), TABLE),
            (&format!("{one}/status"), "application/json"),
            (&one.replace("v1beta1", "v1alpha1"), "application/json"),
        ] {
            shown.push(text(caller, path, accept).await);
        }
    }
    for caller in [&reader, &proxied] {
        let refused = caller.post(&format!("{one}/token"), &json!({})).await;
        refused.expect(403, "Forbidden");
    }
    let kubectl = stage.control_plane.kubectl_as("rhea");
    let here = format!("--namespace={namespace}");
    for args in [
        &["describe", "sandbox", "vault"][..],
        &["get", "sandboxes", "-o", "wide", "--show-labels"],
        &["get", "sandboxes", "-o", "yaml", "--show-managed-fields"],
    ] {
        let args: Vec<_> = args.iter().copied().chain([here.as_str()]).collect();
        shown.push(kubectl.stdout(&args).await);
    }
    for path in ["/metrics", "/readyz?verbose", "/openapi/v2"] {
        let request = Request::get(path).body(Body::empty());
        let answer = direct.send(request.unwrap()).await;
        shown.push(answer.ok().to_string());
    }
    for subresource in ["pause", "resume"] {
        let path = format!("{one}/{subresource}");
        let changed = direct.post(&path, &json!({})).await;
        shown.push(changed.ok().to_string());
        shown.push(events.next().await.unwrap_or_default().to_string());
    }
    // What the creator sends back, and what anybody writes in its place, is dropped.
    let sent =
        json!({"metadata": {"annotations": {"sandbox.cocoonstack.io/token": "forged-token"}}});
    let request = Request::patch(&one).header("content-type", "application/merge-patch+json");
    let request = request.body(Body::from(sent.to_string().into_bytes()));
    shown.push(direct.send(request.unwrap()).await.ok().to_string());
    shown.push(text(&direct, &one, "application/json").await);
    for node in 0..3 {
        stage.publish(node).await;
    }
    let inventories = [
        "get",
        "nodeinventories",
        "--output=yaml",
        "--show-managed-fields",
    ];
    shown.push(stage.control_plane.kubectl().stdout(&inventories).await);
    direct.delete(&one).await.ok();
    shown.push(events.next().await.unwrap_or_default().to_string());
    shown.push(stage.serve.log());
    for text in &shown {
        for secret in [token.as_str(), NODE_TOKEN, "forged-token"] {
            let found = text.find(secret);
            let start = found.unwrap_or_default().saturating_sub(200);
            assert!(found.is_none(), "{secret} in: {}", &text[start..]);
        }
    }
    assert!(
        shown.iter().all(|text| text.len() > 20),
        "everything was read"
    );
}
