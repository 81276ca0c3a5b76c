//! Answers in a form that the client cannot read, or none at all.

use std::time::Duration;

use http::Request;
use kube::client::Body;
use serde_json::{Value, json};

use crate::{
    caller::{Answer, Caller},
    kubectl::In,
    stage::{self, API, Stage, StageOptions, TEMPLATE, collection, eventually, item, sandbox},
};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

async fn accepting(caller: &Caller, method: &str, path: &str, accept: Option<&str>) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(accept) = accept {
        request = request.header("accept", accept);
    }
    caller
        .send(request.body(Body::empty()).expect("a request"))
        .await
}

fn content_type(answer: &Answer) -> &str {
    let value = answer.headers.get("content-type");
    value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

// kubernetes/kubernetes#86666
#[tokio::test]
async fn who_prefers_protobuf_and_takes_json_gets_json_from_every_verb() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("accept").await;
    let (all, one) = (collection(&namespace), item(&namespace, "a"));
    let both = format!("{PROTOBUF},application/json");
    let metadata = format!(
        "{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    );
    let dry = format!("{one}?dryRun=All");
    for caller in [stage.admin(), stage.direct()] {
        stage.create(&namespace, "a").await;
        for (method, path, accept) in [
            ("GET", one.as_str(), both.as_str()),
            ("GET", &all, &both),
            ("GET", &all, &metadata),
            ("GET", &format!("{all}?watch=1&timeoutSeconds=1"), &both),
            ("GET", API, &both),
            ("DELETE", &dry, &both),
        ] {
            let answer = accepting(&caller, method, path, Some(accept)).await;
            assert_eq!(answer.status, 200, "{method} {path}: {:#}", answer.body);
            let form = content_type(&answer);
            assert!(
                form.starts_with("application/json"),
                "{method} {path}: {form}"
            );
        }
        for accept in [Some("*/*"), None, Some("application/*")] {
            let answer = accepting(&caller, "GET", &one, accept).await;
            assert!(
                content_type(&answer).starts_with("application/json"),
                "{accept:?}"
            );
            assert_eq!(answer.ok()["metadata"]["name"], "a");
        }
        let yaml = accepting(&caller, "GET", &one, Some("application/yaml")).await;
        assert_eq!(
            (yaml.status.as_u16(), content_type(&yaml)),
            (200, "application/yaml")
        );
        for path in [&one, &all] {
            let refused = accepting(&caller, "GET", path, Some(PROTOBUF)).await;
            refused.expect(406, "NotAcceptable");
        }
        accepting(&caller, "DELETE", &one, Some(&both)).await.ok();
    }
    // kube-apiserver answers for the group by itself.
    let group = "/apis/agents.x-k8s.io";
    let group = accepting(&stage.direct(), "GET", group, Some(&both)).await;
    assert!(content_type(&group).starts_with("application/json"));
    assert_eq!(stage.nodes.held(&namespace).await, []);
}

// kubernetes/kubernetes#119662
#[tokio::test]
async fn discovery_is_told_in_the_form_that_is_asked_for_or_in_the_ordinary_one() {
    let stage = stage::shared().await;
    let aggregated = |version: &str| {
        let form =
            format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
        format!("{form},application/json")
    };
    let accepts = [
        aggregated("v2"),
        aggregated("v2beta1"),
        format!("{},{}", aggregated("v2"), aggregated("v2beta1")),
        "application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList,application/json"
            .to_owned(),
        "application/json".to_owned(),
    ];
    for (caller, is_direct) in [(stage.direct(), true), (stage.admin(), false)] {
        for path in ["/apis", "/apis/agents.x-k8s.io", API] {
            for accept in &accepts {
                let answer = accepting(&caller, "GET", path, Some(accept)).await;
                let form = content_type(&answer).to_owned();
                let body = answer.ok();
                let expected = match (body["kind"].as_str(), path) {
                    (Some("APIGroupDiscoveryList"), "/apis") => "APIGroupDiscoveryList",
                    (Some("APIGroupList"), "/apis")
                    | (Some("APIGroup"), "/apis/agents.x-k8s.io")
                    | (Some("APIResourceList"), API) => "application/json",
                    _ => panic!("{path} {accept}: {body:#}"),
                };
                assert!(form.contains(expected), "{path} {accept}: {form}");
                if is_direct && path == "/apis" && accept.contains("v=v2") {
                    assert_eq!(expected, "APIGroupDiscoveryList", "{accept}");
                }
            }
        }
    }
    // What it lists works: each verb is answered by what it is about, if only by a complaint of the object or the body.
    let resources = stage.admin().get(API).await.ok();
    let resources = resources["resources"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let sandboxes = resources.iter().find(|it| it["name"] == "sandboxes");
    let verbs = sandboxes
        .map(|it| it["verbs"].to_string())
        .unwrap_or_default();
    let none = item("default", "no-such-sandbox");
    for (verb, code, method, path) in [
        ("get", 404, "GET", none.clone()),
        ("list", 200, "GET", collection("default")),
        ("create", 400, "POST", collection("default")),
        ("update", 400, "PUT", none.clone()),
        ("patch", 415, "PATCH", none.clone()),
        ("delete", 404, "DELETE", none),
        (
            "deletecollection",
            200,
            "DELETE",
            format!(
                "{}?fieldSelector=metadata.name=nobody",
                collection("default")
            ),
        ),
        (
            "watch",
            200,
            "GET",
            format!("{}?watch=1&timeoutSeconds=1", collection("default")),
        ),
    ] {
        assert!(verbs.contains(&format!("{verb:?}")), "{verbs}");
        let answer = stage.admin().call(method, &path, None).await;
        assert_eq!(answer.status, code, "{verb}: {:#}", answer.body);
    }
}

// kubernetes/kubernetes#133402
#[tokio::test]
async fn kube_apiserver_finds_every_document_and_complains_of_none() {
    let control_plane = crate::control_plane::shared();
    let before = control_plane.apiserver_log().len();
    let stage = Stage::start(StageOptions::default()).await;
    stage.openapi_has("agents.x-k8s.io/v1beta1").await;
    let admin = stage.admin();
    eventually(
        Duration::from_secs(70),
        "version 2 is aggregated",
        async || {
            let document = admin.get("/openapi/v2").await.ok();
            document["paths"].get(format!("{API}/sandboxes")).is_some()
        },
    )
    .await;
    for path in ["/openapi/v2", "/openapi/v3/apis/agents.x-k8s.io/v1beta1"] {
        let document = stage.direct().get(path).await;
        let tag = document.headers.get("etag").cloned().expect("it has a tag");
        document.ok();
        let request = Request::get(path).header("if-none-match", tag);
        let again = stage
            .direct()
            .send(request.body(Body::empty()).expect("a request"))
            .await;
        assert_eq!(again.status, 304, "{path}");
    }
    let log = control_plane.apiserver_log();
    // Of other tests' servers, which came and went before.
    let ours = &log[before..];
    let complaints = ours.lines().filter(|line| {
        let is_bad = line.starts_with(['E', 'W']);
        is_bad
            && line.contains("agents.x-k8s.io")
            && (line.contains("OpenAPI") || line.contains("openapi"))
    });
    assert_eq!(complaints.collect::<Vec<_>>(), [""; 0]);
}

// stackshy/cloudemu#871, kubernetes-sigs/agent-sandbox#964
#[tokio::test]
async fn a_table_shows_which_sandboxes_are_broken_and_why() {
    let stage = stage::shared().await;
    let here = In::new(&stage, "table").await;
    for name in ["b", "a"] {
        here.feed(&["create", "-f-"], &sandbox(name, TEMPLATE))
            .await;
    }
    let (all, admin) = (collection(&here.namespace), stage.admin());
    let pause = format!("{}/pause", item(&here.namespace, "a"));
    admin.post(&pause, &json!({})).await.ok();
    let columns =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let shown = here
        .run(&[
            "get",
            "sandboxes",
            "--sort-by=.metadata.name",
            "--show-labels",
        ])
        .await;
    let lines: Vec<_> = shown.lines().map(columns).collect();
    assert_eq!(lines[0], ["NAME", "READY", "REASON", "AGE", "LABELS"]);
    assert_eq!(lines[1][..3], ["a", "False", "SandboxSuspended"]);
    assert_eq!(lines[2][..3], ["b", "True", "DependenciesReady"]);
    let wide = here.run(&["get", "sandboxes", "-o", "wide"]).await;
    for column in ["NODE", "EXPIRES", "TEMPLATE", "ID"] {
        assert!(
            wide.lines()
                .next()
                .is_some_and(|head| head.contains(column)),
            "{wide}"
        );
    }

    let born = |table: &Value| -> Vec<Value> {
        let rows = table["rows"].as_array().cloned().unwrap_or_default();
        rows.iter()
            .map(|row| row["object"]["metadata"]["creationTimestamp"].clone())
            .collect()
    };
    let mut ages = Vec::new();
    for include in ["Metadata", "Object", "None"] {
        let table = accepting(
            &admin,
            "GET",
            &format!("{all}?includeObject={include}"),
            Some(TABLE),
        )
        .await
        .ok();
        assert_eq!(table["kind"], "Table");
        let row = &table["rows"][0];
        assert_eq!(
            row["cells"].as_array().map(Vec::len),
            table["columnDefinitions"].as_array().map(Vec::len)
        );
        match include {
            "Metadata" => assert_eq!(row["object"]["kind"], "PartialObjectMetadata"),
            "Object" => assert_eq!(row["object"]["kind"], "Sandbox"),
            _ => assert!(row["object"].is_null(), "{row:#}"),
        }
        if include != "None" {
            ages.push(born(&table));
        }
    }
    assert!(ages[0] == ages[1] && ages[0].len() == 2, "{ages:?}");

    // A watch for a table tells rows.
    let watch = Request::get(format!("{all}?watch=1&timeoutSeconds=3")).header("accept", TABLE);
    let told = admin
        .send(watch.body(Body::empty()).expect("a request"))
        .await;
    let told = told.ok();
    let events: Vec<Value> = match &told {
        Value::String(lines) => lines
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect(),
        event => vec![event.clone()],
    };
    assert_eq!(events.len(), 2, "{told:#}");
    for event in events {
        assert_eq!(
            (&event["type"], &event["object"]["kind"]),
            (&json!("ADDED"), &json!("Table"))
        );
        assert_eq!(event["object"]["rows"].as_array().map(Vec::len), Some(1));
    }
}
