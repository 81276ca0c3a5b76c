//! Actions on an object, and the streams that are not built yet.

use http::StatusCode;
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};

use super::{
    client::{Client, MERGE, SOON},
    subject::Subject,
};
use crate::{
    caller::Answer,
    stage::{self, OwnNode, eventually},
};

/// The actions, and the code and the kind of their answers.
const ACTIONS: [(&str, u16, &str); 4] = [
    ("pause", 200, "Sandbox"),
    ("resume", 200, "Sandbox"),
    ("fork", 201, "SandboxList"),
    ("snapshot", 201, "SandboxSnapshot"),
];

items! {
    c_185 P0 "Actions need no body, answer with documented kinds, and refuse with the code of the cause: 404, 409, 429 or 503.", ours;
    c_186 P1 "Actions honour dryRun, fieldManager and preconditions, and can be repeated; a fork and a snapshot by the name that the client chose.", ours;
    c_187 P0 "Programs in a sandbox are reached by a plugin or client-go's executor at the object's own exec, as kubectl's commands only know pods.", later "streams into sandboxes";
    c_188 P0 "Exec speaks the channel protocols of Kubernetes over WebSocket, and answers pings.", later "streams into sandboxes";
    c_189 P0 "A program's end is one Status on channel 3, with its exit code as a cause.", later "streams into sandboxes";
    c_190 P2 "Old clients get SPDY, and ports are forwarded over WebSocket.", later "streams into sandboxes; that who asks is refused with a Status before the connection changes hands is tested";
    c_191 P1 "The log of a sandbox is text that can be followed, cut and stamped.", later "streams into sandboxes";
    c_192 P0 "Streams end with their client and with their sandbox.", later "streams into sandboxes";
}

/// Calls an action, with an empty body for `null`.
async fn act(
    client: &Client,
    subject: &Subject,
    name: &str,
    action: &str,
    options: &Value,
) -> Answer {
    let path = format!("{}/{action}", subject.item(name));
    let body = match options {
        Value::Null => String::new(),
        options => options.to_string(),
    };
    client.send("POST", &path, &[], &body).await
}

async fn c_185(subject: &Subject) {
    kinds_are_documented(subject).await;
    for (client, name) in subject.both_ways().into_iter().zip(["proxied", "direct"]) {
        subject.create(name).await;
        for (action, code, kind) in ACTIONS {
            let answer = act(&client, subject, name, action, &Value::Null).await;
            let found = (answer.status.as_u16(), &answer.body["kind"]);
            assert_eq!(found, (code, &json!(kind)), "{action}: {:#}", answer.body);
            let missing = act(&client, subject, "absent", action, &Value::Null).await;
            missing.expect(404, "NotFound");
        }
    }
    let client = subject.proxied();
    refusals_are_of_their_cause(subject, &client).await;
    let mut held = subject.mk("held");
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    subject.create_from(held).await;
    client.delete(&subject.item("held")).await.ok();
    for (action, _, _) in ACTIONS {
        let answer = act(&client, subject, "held", action, &Value::Null).await;
        answer.expect(409, "Conflict");
    }
    let free = json!({"metadata": {"finalizers": null}});
    client.patch(MERGE, &subject.item("held"), &free).await.ok();
}

/// Discovery names the kinds of the options, OpenAPI those of the answers as well.
async fn kinds_are_documented(subject: &Subject) {
    let resources = subject.proxied().get(stage::API).await.ok();
    let resources = resources["resources"].as_array().expect("a list");
    let documented = format!("/openapi/v3{}", stage::API);
    let document = subject.direct().get(&documented).await.ok();
    for (action, _, kind) in ACTIONS {
        let name = format!("sandboxes/{action}");
        let resource = resources.iter().find(|resource| resource["name"] == name);
        let resource = resource.unwrap_or_else(|| panic!("{name} is not discovered"));
        assert_eq!(resource["verbs"], json!(["create"]));
        let path = format!(
            "{}/namespaces/{{namespace}}/sandboxes/{{name}}/{action}",
            stage::API
        );
        let operation = &document["paths"][&path]["post"];
        let options = operation["requestBody"].to_string();
        let wanted = resource["kind"].as_str().unwrap();
        assert!(options.contains(wanted), "{path}: {options}");
        let answers = operation["responses"].to_string();
        assert!(answers.contains(kind), "{path}: {answers}");
    }
}

/// What a node says, or that it is silent, decides the code; `Retry-After` comes only where nothing was begun.
async fn refusals_are_of_their_cause(subject: &Subject, client: &Client) {
    let node = subject.own_node();
    let nodes = subject.nodes();
    create_on(subject, &node, "own").await;
    let full = json!({"status": {"status": 429, "text": "full"}});
    for (fault, code, reason, retry_after) in [
        (full, 429, "TooManyRequests", Some(1)),
        (json!("answerLost"), 500, "InternalError", None),
    ] {
        nodes
            .fail_once(node.index, fault, "/v1/sandboxes/*/fork")
            .await;
        let answer = act(client, subject, "own", "fork", &json!({})).await;
        answer.expect(code, reason);
        assert_eq!(answer.retry_after(), retry_after, "{:#}", answer.body);
    }
    create_on(subject, &node, "asleep").await;
    act(client, subject, "asleep", "pause", &json!({}))
        .await
        .ok();
    let mut brief = stage::sandbox("brief", &node.template);
    brief["metadata"]["annotations"] = json!({"sandbox.cocoonstack.io/ttl-seconds": "5"});
    subject.create_from(brief).await;
    nodes.stop(node.index).await;
    let answer = act(client, subject, "asleep", "resume", &json!({})).await;
    answer.expect(503, "ServiceUnavailable");
    for (action, _, _) in ACTIONS {
        // What runs need not be resumed, so nobody is asked.
        if action != "resume" {
            let answer = act(client, subject, "own", action, &json!({})).await;
            answer.expect(503, "ServiceUnavailable");
        }
    }
    // Its lease is over, and nobody has said that it is gone.
    eventually(SOON, "it has expired", async || {
        let shown = client.get(&subject.item("brief")).await.ok();
        let conditions = shown["status"]["conditions"].to_string();
        conditions.contains("SandboxExpired")
    })
    .await;
    for (action, _, _) in ACTIONS {
        let answer = act(client, subject, "brief", action, &json!({})).await;
        answer.expect(409, "Conflict");
    }
    nodes.start(node.index).await;
}

/// The half of C-190 that is built.
mod upgrades {
    use super::*;

    #[tokio::test]
    async fn of_streams_that_are_not_built_are_refused_with_a_status_first() {
        let subject = Subject::product().await;
        subject.create("a").await;
        for (client, is_direct) in subject.upgraders().into_iter().zip([false, true]) {
            for (method, protocol) in [
                ("GET", "websocket"),
                ("POST", "websocket"),
                ("GET", "SPDY/3.1"),
                ("POST", "SPDY/3.1"),
            ] {
                for stream in ["exec?command=true", "attach", "portforward?ports=80", "log"] {
                    let path = format!("{}/{stream}", subject.item("a"));
                    let request = http::Request::builder()
                        .method(method)
                        .uri(&path)
                        .header("connection", "Upgrade")
                        .header("upgrade", protocol)
                        .header("sec-websocket-version", "13")
                        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
                    let answer = client.send(request.body(Body::empty()).unwrap()).await;
                    let (head, body) = answer.unwrap().into_parts();
                    let what = format!("{method} {protocol} {path}, direct: {is_direct}");
                    assert!(head.status.is_client_error(), "{what}: {}", head.status);
                    let body = body.collect().await.unwrap().to_bytes();
                    let status: Value = serde_json::from_slice(&body).expect(&what);
                    assert_eq!(status["kind"], "Status", "{what}");
                    assert_eq!(status["code"], head.status.as_u16(), "{what}");
                }
            }
        }
    }
}

async fn create_on(subject: &Subject, node: &OwnNode, name: &str) -> Value {
    let object = stage::sandbox(name, &node.template);
    subject.create_from(object).await
}

async fn c_186(subject: &Subject) {
    let node = subject.own_node();
    let created = create_on(subject, &node, "a").await;
    let (nodes, client) = (subject.nodes(), subject.proxied());
    let before = nodes.requests(node.index, "POST").await;
    for (action, code, kind) in ACTIONS {
        let dry = format!("{action}?dryRun=All");
        let would = act(&client, subject, "a", &dry, &Value::Null).await;
        let found = (would.status.as_u16(), &would.body["kind"]);
        assert_eq!(found, (code, &json!(kind)), "{action}: {:#}", would.body);
        for bad in [
            "dryRun=Some".to_owned(),
            format!("fieldManager={}", "x".repeat(129)),
        ] {
            let refused = act(
                &client,
                subject,
                "a",
                &format!("{action}?{bad}"),
                &json!({}),
            )
            .await;
            refused.expect(422, "Invalid");
        }
        for meant in [
            json!({"uid": "00000000-0000-4000-8000-000000000001"}),
            json!({"uid": created["metadata"]["uid"], "resourceVersion": "1"}),
        ] {
            let meant = json!({"preconditions": meant});
            let refused = act(&client, subject, "a", action, &meant).await;
            refused.expect(409, "Conflict");
        }
    }
    assert_eq!(nodes.requests(node.index, "POST").await, before);
    let meant = json!({"preconditions": {"uid": created["metadata"]["uid"]}});
    for mode in ["pause", "resume"] {
        let done = act(
            &client,
            subject,
            "a",
            &format!("{mode}?fieldManager=switch"),
            &meant,
        )
        .await;
        let object = done.ok();
        assert_eq!(owner_of_mode(&object), ["switch"], "{object:#}");
        let again = act(&client, subject, "a", mode, &meant).await;
        assert_eq!(again.status, StatusCode::OK);
        assert_eq!(again.body, object);
    }
    copies_are_made_once(subject, &client).await;
}

/// Who owns `spec.operatingMode`.
fn owner_of_mode(object: &Value) -> Vec<&str> {
    let entries = object["metadata"]["managedFields"].as_array();
    let owners = entries.into_iter().flatten();
    owners
        .filter(|entry| entry["fieldsV1"]["f:spec"]["f:operatingMode"].is_object())
        .filter_map(|entry| entry["manager"].as_str())
        .collect()
}

/// A snapshot of the same name and a fork of the same id are those that were made before.
async fn copies_are_made_once(subject: &Subject, client: &Client) {
    let named = json!({"name": "before-lunch"});
    let first = act(client, subject, "a", "snapshot", &named).await.ok();
    let again = act(client, subject, "a", "snapshot", &named).await.ok();
    assert!(first["status"]["id"].is_string(), "{first:#}");
    assert_eq!(again["status"]["id"], first["status"]["id"]);

    let chosen = json!({"count": 2, "id": "lunch"});
    let first = act(client, subject, "a", "fork", &chosen).await;
    assert_eq!(first.status, StatusCode::CREATED, "{:#}", first.body);
    let again = act(client, subject, "a", "fork", &chosen).await;
    assert_eq!(again.status, StatusCode::OK, "{:#}", again.body);
    let uids = |list: &Value| {
        let items = list["items"].as_array().unwrap().iter();
        let mut uids: Vec<String> = items.map(|it| it["metadata"]["uid"].to_string()).collect();
        uids.sort();
        uids
    };
    assert_eq!(uids(&first.body).len(), 2);
    assert_eq!(uids(&again.body), uids(&first.body));
    let token = "sandbox.cocoonstack.io/token";
    let shown = |answer: &Answer| answer.body.to_string().contains(token);
    assert!(
        shown(&first) && !shown(&again),
        "a credential is shown once"
    );
    assert!(again.headers.contains_key("warning"), "and that is told");
}
