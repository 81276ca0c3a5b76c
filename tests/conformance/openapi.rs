//! The schemas, and what kubectl makes of them.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{client::Client, documents, subject::Subject};
use crate::{api_service::GROUP, caller::Answer, stage::API};

items! {
    c_064 P0 "The OpenAPI v3 index names the documents of its own versions, with a hash in each address.", ours;
    c_065 P0 "OpenAPI is never 404, and 503 while the server starts.", ours;
    c_066 P0 "The document of a version is OpenAPI 3 in JSON under an entity tag, for every user.";
    c_067 P1 "A document under its present hash may be kept for a year; a stale hash gets the present document.", ours;
    c_068 P0 "Paths are complete, and operations and schemas name their kinds, so that `kubectl explain` finds its way.";
    c_069 P0 "PATCH declares `fieldValidation` inline, so that kubectl leaves validation to the server.";
    c_070 P0 "PATCH lists JSON, merge and apply patches and no strategic one, so that `kubectl apply` merges.";
    c_071 P0 "The Swagger 2.0 document has an entity tag and paths of its own versions only, and is merged.", ours;
    c_072 P1 "Shared definitions have the standard names and contents, so that merging renames none.", ours;
    c_073 P1 "Schemas have descriptions, required fields, enums, defaults and the markers of lists and maps.";
}

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
/// kube-apiserver fetches documents when a server comes to it, and once a minute afterwards.
const AGGREGATED_WITHIN: Duration = Duration::from_secs(70);
const COLLECTION: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxes";

/// A document, once it is there.
async fn document(client: &Client, path: &str, is_there: impl Fn(&Value) -> bool) -> Answer {
    let deadline = Instant::now() + AGGREGATED_WITHIN;
    loop {
        let answer = client.get_as(path, "application/json").await;
        if answer.status == 200 && is_there(&answer.body) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{path}: {}", answer.status);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The v3 document, as kubectl gets it.
async fn v3(subject: &Subject) -> Value {
    document(
        &subject.proxied(),
        &documents::openapi_path("v1beta1"),
        |_| true,
    )
    .await
    .ok()
}

/// The document is not sent again to who has it.
async fn is_kept_by_tag(client: &Client, path: &str, answer: &Answer) {
    let tag = documents::entity_tag(answer);
    let vary = answer.headers["vary"].to_str().unwrap();
    assert!(vary.split(", ").any(|name| name == "Accept"), "{vary}");
    let headers = [("accept", "application/json"), ("if-none-match", &tag)];
    let known = client.send("GET", path, &headers, "").await;
    assert_eq!((known.status.as_u16(), known.bytes.len()), (304, 0));
}

async fn versions(client: &Client) -> Vec<String> {
    let group = client.get(&format!("/apis/{GROUP}")).await.ok();
    let versions = group["versions"].as_array().unwrap().iter();
    versions
        .map(|version| version["version"].as_str().unwrap().to_owned())
        .collect()
}

async fn c_064(subject: &Subject) {
    let client = subject.direct();
    let index = client.get("/openapi/v3").await;
    assert_eq!(index.headers["content-type"], "application/json");
    let index = index.ok();
    let paths = index["paths"].as_object().unwrap();
    let versions = versions(&client).await.into_iter();
    let own: BTreeSet<_> = versions
        .map(|name| format!("apis/{GROUP}/{name}"))
        .collect();
    assert!(paths.keys().eq(&own), "{paths:?}");
    for (key, entry) in paths {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        let hash = url.strip_prefix(&format!("/openapi/v3/{key}?hash="));
        assert!(hash.is_some_and(|hash| !hash.is_empty()), "{url}");
        assert_eq!(client.get(url).await.status, 200, "{url}");
    }
    // kube-apiserver's index has them too, each with this server's hash.
    let is_there = |index: &Value| own.iter().all(|key| index["paths"][key].is_object());
    let merged = document(&subject.proxied(), "/openapi/v3", is_there)
        .await
        .ok();
    for (key, entry) in paths {
        assert_eq!(&merged["paths"][key], entry);
    }
}

async fn c_065(subject: &Subject) {
    let document = documents::openapi_path("v1beta1");
    let paths = ["/openapi/v3", "/openapi/v2", document.as_str()];
    let mut server = subject.starting_server().await;
    let client = server.client();
    for path in paths {
        client.get(path).await.expect(503, "ServiceUnavailable");
    }
    subject.let_start().await;
    let deadline = Instant::now() + Duration::from_secs(20);
    for path in paths {
        loop {
            let code = client.get(path).await.status.as_u16();
            assert!(code == 503 || code == 200, "{path}: {code}");
            if code == 200 {
                break;
            }
            assert!(Instant::now() < deadline, "{path}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    server.ready().await;
}

async fn c_066(subject: &Subject) {
    let path = documents::openapi_path("v1beta1");
    // Asked as whoever calls, who need not have any rights.
    let user = format!("reader-{}", subject.namespace);
    for client in [subject.direct_as(&user), subject.proxied_as(&user)] {
        let answer = document(&client, &path, |_| true).await;
        assert_eq!(answer.headers["content-type"], "application/json");
        let version = answer.body["openapi"].as_str().unwrap();
        assert!(version.starts_with("3."), "{version}");
        is_kept_by_tag(&client, &path, &answer).await;
        let protobuf = client.get_as(&path, PROTOBUF).await;
        match protobuf.status.as_u16() {
            200 => assert!(protobuf.headers["content-type"] != "application/json"),
            _ => protobuf.expect(406, "NotAcceptable"),
        }
    }
}

async fn c_067(subject: &Subject) {
    let path = documents::openapi_path("v1beta1");
    for client in [subject.direct(), subject.proxied()] {
        let key = format!("apis/{GROUP}/v1beta1");
        let is_there = |index: &Value| index["paths"][&key].is_object();
        let index = document(&client, "/openapi/v3", is_there).await.ok();
        let url = index["paths"][&key]["serverRelativeURL"].as_str().unwrap();
        let present = client.get(url).await;
        assert!(is_immutable(&present), "{:?}", present.headers);
        // `Thu, 31 Dec 2037 23:55:55 GMT`: the year after this one or any later.
        let expires = present.headers["expires"].to_str().unwrap();
        let year: i16 = expires.split(' ').nth(3).unwrap().parse().unwrap();
        let now =
            k8s_openapi::jiff::Timestamp::now().to_zoned(k8s_openapi::jiff::tz::TimeZone::UTC);
        assert!(year > now.year(), "{expires}");
        let stale = client.get(&format!("{path}?hash=stale")).await;
        assert_eq!(stale.status, 200);
        assert!(!stale.headers.contains_key("location"));
        assert!(!is_immutable(&stale), "{:?}", stale.headers);
        assert_eq!(stale.bytes, present.bytes);
    }
}

/// kube-apiserver sends a Cache-Control of its own beside the one of who answers.
fn is_immutable(answer: &Answer) -> bool {
    let mut kept = answer.headers.get_all("cache-control").iter();
    kept.any(|kept| {
        let kept = kept.to_str().unwrap();
        kept.contains("public") && kept.contains("immutable")
    })
}

async fn c_068(subject: &Subject) {
    let v3 = v3(subject).await;
    let paths = v3["paths"].as_object().unwrap();
    let list = subject.proxied().get(API).await.ok();
    for resource in list["resources"].as_array().unwrap() {
        let name = resource["name"].as_str().unwrap();
        let (plural, part) = name.split_once('/').unwrap_or((name, ""));
        let collection = format!("{API}/namespaces/{{namespace}}/{plural}");
        let expected = match part {
            "" => vec![
                format!("{API}/{plural}"),
                format!("{collection}/{{name}}"),
                collection,
            ],
            part => vec![format!("{collection}/{{name}}/{part}")],
        };
        for path in expected {
            assert!(paths.contains_key(&path), "{path}");
        }
    }
    let schemas = v3["components"]["schemas"].as_object().unwrap();
    let kind = |kind: &str| json!({"group": GROUP, "version": "v1beta1", "kind": kind});
    let described = |kind: &Value| {
        let of_kind = |schema: &&Value| {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            kinds.is_some_and(|kinds| kinds.contains(kind))
        };
        schemas.values().filter(of_kind).count()
    };
    assert_eq!(described(&kind("Sandbox")), 1);
    assert_eq!(described(&kind("SandboxList")), 1);
    for (path, item) in paths.iter().filter(|(path, _)| path.starts_with(API)) {
        for (method, operation) in item.as_object().unwrap() {
            if operation.get("operationId").is_none() {
                continue;
            }
            let kind = &operation["x-kubernetes-group-version-kind"];
            assert!(kind["kind"].is_string(), "{method} {path}");
            assert_eq!(described(kind), 1, "{method} {path}");
        }
    }
    let field = subject.said("sandboxes.spec.operatingMode");
    let explained = subject.kubectl().stdout(&["explain", &field]).await;
    let lines: Vec<_> = explained.lines().map(words).collect();
    for expected in [
        "GROUP: agents.x-k8s.io",
        "KIND: Sandbox",
        "VERSION: v1beta1",
    ] {
        assert!(lines.contains(&subject.said(expected)), "{explained}");
    }
    assert!(explained.contains("FIELD: operatingMode"), "{explained}");
}

/// A line with one blank between any two words.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn c_069(subject: &Subject) {
    let v3 = v3(subject).await;
    let path = format!("{COLLECTION}/{{name}}");
    let patched = ["", "/status"].map(|part| format!("{path}{part}"));
    for path in patched {
        let parameters = v3["paths"][&path]["patch"]["parameters"].as_array();
        let parameters = parameters.unwrap_or_else(|| panic!("{path}"));
        for name in ["fieldValidation", "dryRun", "fieldManager", "force"] {
            let is_inline = |known: &Value| known["name"] == name && known["in"] == "query";
            assert!(parameters.iter().any(is_inline), "{path}: {name}");
        }
    }
    let mut misspelt = subject.mk("a");
    misspelt["spec"]["operatingMod"] = "Running".into();
    let args = ["create", "--namespace", &subject.namespace, "--filename=-"];
    let input = subject.said(&misspelt.to_string());
    let output = subject.kubectl().run_with_input(&args, &input).await;
    let complaint = String::from_utf8_lossy(&output.stderr);
    // What kubectl finds by itself is said in other words.
    let expected = r#"strict decoding error: unknown field "spec.operatingMod""#;
    assert!(complaint.contains(expected), "{complaint}");
}

async fn c_070(subject: &Subject) {
    let v3 = v3(subject).await;
    let path = format!("{COLLECTION}/{{name}}");
    let patch = &v3["paths"][&path]["patch"];
    let types = patch["requestBody"]["content"].as_object().unwrap();
    let expected = [
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
    ];
    assert!(types.keys().eq(&expected), "{types:?}");
    let args = ["apply", "--namespace", &subject.namespace, "--filename=-"];
    let kubectl = subject.kubectl();
    subject.create("a").await;
    for (color, said) in [
        ("red", "configured"),
        ("red", "unchanged"),
        ("blue", "configured"),
    ] {
        let mut object = subject.mk("a");
        object["metadata"]["labels"] = json!({"color": color});
        let input = subject.said(&object.to_string());
        let applied = kubectl.stdout_with_input(&args, &input).await;
        assert!(applied.contains(said), "{applied}");
    }
    let shown = subject.proxied().get(&subject.item("a")).await.ok();
    assert_eq!(shown["metadata"]["labels"]["color"], "blue");
}

async fn c_071(subject: &Subject) {
    let direct = subject.direct();
    let answer = direct.get_as("/openapi/v2", "application/json").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.body["swagger"], "2.0");
    is_kept_by_tag(&direct, "/openapi/v2", &answer).await;
    let versions = versions(&direct).await.into_iter();
    let own: Vec<_> = versions
        .map(|name| format!("/apis/{GROUP}/{name}/"))
        .collect();
    let paths = answer.body["paths"].as_object().unwrap();
    for path in paths.keys() {
        assert!(own.iter().any(|own| path.starts_with(own)), "{path}");
    }
    let is_there = |document: &Value| paths.keys().all(|path| document["paths"][path].is_object());
    document(&subject.proxied(), "/openapi/v2", is_there).await;
}

async fn c_072(subject: &Subject) {
    let direct = subject.direct();
    let v2 = direct.get_as("/openapi/v2", "application/json").await.ok();
    let is_there = |document: &Value| document["paths"][COLLECTION].is_object();
    let merged = document(&subject.proxied(), "/openapi/v2", is_there)
        .await
        .ok();
    let own = v2["definitions"].as_object().unwrap();
    let shared: Vec<_> = own
        .iter()
        .filter(|(name, _)| name.starts_with("io.k8s."))
        .collect();
    for standard in ["core.v1.PodSpec", "core.v1.Container"] {
        assert!(
            own.contains_key(&format!("io.k8s.api.{standard}")),
            "{standard}"
        );
    }
    assert!(own.contains_key("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"));
    // Kinds of all groups are gathered at the options, which does not count as a difference.
    let content = |definition: &Value| {
        let mut definition = definition.clone();
        let fields = definition.as_object_mut().expect("it is there");
        fields.remove("x-kubernetes-group-version-kind");
        definition
    };
    for (name, own) in shared {
        let theirs = &merged["definitions"][name];
        assert_eq!(content(own), content(theirs), "{name}");
    }
    let renamed: Vec<_> = merged["definitions"]
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| name.starts_with("io.k8s.") && name.contains("_v"))
        .collect();
    assert!(renamed.is_empty(), "{renamed:#?}");
}

async fn c_073(subject: &Subject) {
    let v3 = v3(subject).await;
    let schemas = v3["components"]["schemas"].as_object().unwrap();
    let kind = json!({"group": GROUP, "version": "v1beta1", "kind": "Sandbox"});
    let sandbox = schemas.values().find(|schema| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.is_some_and(|kinds| kinds.contains(&kind))
    });
    let sandbox = sandbox.expect("the kind has a schema");
    assert!(!sandbox["description"].as_str().unwrap().is_empty());
    let (spec, status) = (
        property(&v3, sandbox, "spec"),
        property(&v3, sandbox, "status"),
    );
    assert_eq!(spec["required"], json!(["podTemplate"]));
    let mode = property(&v3, spec, "operatingMode");
    assert_eq!(mode["enum"], json!(["Running", "Suspended"]));
    assert_eq!(spec["properties"]["operatingMode"]["default"], "Running");
    for schema in [spec, status] {
        for (name, property) in schema["properties"].as_object().unwrap() {
            let description = property["description"].as_str();
            assert!(description.is_some_and(|text| !text.is_empty()), "{name}");
        }
    }
    let conditions = &status["properties"]["conditions"];
    assert_eq!(conditions["x-kubernetes-list-type"], "map");
    assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
    let pod = property(&v3, property(&v3, spec, "podTemplate"), "spec");
    let containers = &pod["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-list-type"], "map");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(
        pod["properties"]["nodeSelector"]["x-kubernetes-map-type"],
        "atomic"
    );
}

/// The schema of a property, wherever it stands in the document.
#[track_caller]
fn property<'a>(document: &'a Value, schema: &'a Value, name: &str) -> &'a Value {
    let property = &schema["properties"][name];
    let reference = [property, &property["allOf"][0]];
    let reference = reference.iter().find_map(|place| place["$ref"].as_str());
    match reference {
        None => property,
        Some(reference) => document
            .pointer(reference.trim_start_matches('#'))
            .unwrap_or_else(|| panic!("{reference} is missing")),
    }
}
