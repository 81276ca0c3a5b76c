//! What the API says that it has.

use std::{collections::BTreeSet, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    client::{Client, MERGE, SOON},
    documents,
    subject::Subject,
};
use crate::{api_service::GROUP, stage::API, twin};

items! {
    c_050 P0 "The resource list of a version names every resource and subresource with scope, kind and verbs.";
    c_051 P0 "Exactly the advertised verbs work, those that the controllers look for among them.";
    c_052 P0 "Aggregated discovery names versions, the preferred one first, with their resources and subresources.";
    c_053 P0 "Aggregated discovery has an entity tag; who has that version gets 304 without a body.";
    c_054 P0 "A starting server answers discovery with 503, never with a document that lacks something.", ours;
    c_055 P1 "Plain JSON discovery names the groups, their versions and the preferred one.";
    c_056 P1 "Both discovery documents and both OpenAPI documents agree on resources, kinds and verbs.";
    c_057 P1 "Names, kinds and subresources are those of the upstream definition, `scale` of the old version among them.", ours;
    c_058 P1 "Every answer in the deprecated version carries the upstream Warning.", ours;
    c_059 P2 "A storage version hash is left out, or that of group, version and kind.";
    c_060 P1 "An unknown path is 404 in plain text, and 503 until the start is complete.", ours;
    c_061 P2 "`/version` tells the version in JSON.";
}

/// What kubectl, client-go and the aggregator ask `/apis` for.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const OLD_API: &str = "/apis/agents.x-k8s.io/v1alpha1";
const DEPRECATION: &str = concat!(
    r#"299 - "agents.x-k8s.io/v1alpha1 Sandbox is deprecated; "#,
    r#"use agents.x-k8s.io/v1beta1 Sandbox instead""#,
);
const ALL: &str = "dryRun=All";

/// A verb on a resource, and the request that it is: whether for one object, and whether it has a body.
const ON_RESOURCES: [(&str, &str, bool); 8] = [
    ("create", "POST", false),
    ("delete", "DELETE", true),
    ("deletecollection", "DELETE", false),
    ("get", "GET", true),
    ("list", "GET", false),
    ("patch", "PATCH", true),
    ("update", "PUT", true),
    ("watch", "GET", false),
];
const ON_SUBRESOURCES: [(&str, &str); 5] = [
    ("create", "POST"),
    ("delete", "DELETE"),
    ("get", "GET"),
    ("patch", "PATCH"),
    ("update", "PUT"),
];

async fn c_050(subject: &Subject) {
    for client in subject.both_ways() {
        let answer = client.get(API).await;
        assert_eq!(answer.headers["content-type"], "application/json");
        let list = answer.ok();
        assert_eq!(list["kind"], "APIResourceList");
        assert_eq!(list["apiVersion"], "v1");
        assert_eq!(list["groupVersion"], "agents.x-k8s.io/v1beta1");
        let resource = documents::resource(&list, "sandboxes");
        assert_eq!(resource["singularName"], "sandbox");
        assert_eq!(resource["kind"], "Sandbox");
        documents::resource(&list, "sandboxes/status");
        for resource in list["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            assert_eq!(resource["namespaced"], true, "{name}");
            assert!(resource["singularName"].is_string(), "{name}");
            assert_ne!(resource["kind"].as_str().unwrap(), "", "{name}");
            assert!(!documents::texts(&resource["verbs"]).is_empty(), "{name}");
            for optional in ["shortNames", "categories"] {
                documents::texts(&resource[optional]);
            }
            if let Some((owner, _)) = name.split_once('/') {
                documents::resource(&list, owner);
            }
            // That a kind of another group is named with it, and that none is missing, is C-056's to show.
        }
    }
}

async fn c_051(subject: &Subject) {
    subject.create("a").await;
    for client in subject.both_ways() {
        let list = client.get(API).await.ok();
        let verbs = documents::texts(&documents::resource(&list, "sandboxes")["verbs"]);
        // Of the garbage collector, of the quota, and of who empties a namespace.
        let needed = "create delete deletecollection list watch";
        assert!(needed.split(' ').all(|verb| verbs.contains(verb)));
        let resources = list["resources"].as_array().unwrap().iter();
        for resource in resources.filter(|resource| is_of_sandboxes(resource)) {
            let name = resource["name"].as_str().unwrap();
            let advertised = documents::texts(&resource["verbs"]);
            let requests: Vec<_> = match name.split_once('/') {
                None => ON_RESOURCES
                    .iter()
                    .map(|(verb, method, on_object)| (*verb, *method, *on_object, ""))
                    .collect(),
                Some((_, part)) => ON_SUBRESOURCES
                    .iter()
                    .map(|(verb, method)| (*verb, *method, true, part))
                    .collect(),
            };
            for (verb, method, on_object, part) in requests {
                let code = tried(subject, &client, verb, method, on_object, part).await;
                // What an action cannot do without is not for this check to know.
                let works = (200..300).contains(&code) || (!part.is_empty() && code == 422);
                assert_eq!(works, advertised.contains(verb), "{verb} {name}: {code}");
                assert!(works || code == 405, "{verb} {name}: {code}");
            }
        }
    }
}

/// Whether an entry is that of sandboxes or of a part of theirs.
fn is_of_sandboxes(resource: &Value) -> bool {
    let name = resource["name"].as_str().unwrap();
    name.split('/').next() == Some("sandboxes")
}

/// The code that a verb is answered with, nothing being changed.
async fn tried(
    subject: &Subject,
    client: &Client,
    verb: &str,
    method: &str,
    on_object: bool,
    part: &str,
) -> u16 {
    let mut path = match on_object {
        true => subject.item("a"),
        false => subject.collection(),
    };
    let body = match (verb, part) {
        ("create", "") => subject.mk("another").to_string(),
        ("update", _) => current(client, &format!("{path}/{part}")).await.to_string(),
        ("create" | "patch", _) => "{}".to_owned(),
        _ => String::new(),
    };
    if !part.is_empty() {
        path = format!("{path}/{part}");
    }
    path += &match verb {
        "get" | "list" => String::new(),
        "watch" => "?watch=true&timeoutSeconds=1".to_owned(),
        _ => format!("?{ALL}"),
    };
    let headers: &[(&str, &str)] = match verb {
        "patch" => &[("content-type", MERGE)],
        _ => &[],
    };
    client
        .send(method, &path, headers, &body)
        .await
        .status
        .as_u16()
}

/// What an update of a path has to start from; of a part that cannot be read, anything.
async fn current(client: &Client, path: &str) -> Value {
    client.get(path.trim_end_matches('/')).await.body
}

async fn c_052(subject: &Subject) {
    for client in [subject.direct(), subject.proxied()] {
        let group = aggregated(&client).await;
        let versions = group["versions"].as_array().unwrap();
        assert_eq!(versions[0]["version"], "v1beta1");
        for version in versions {
            assert_eq!(version["freshness"], "Current");
            let resources = version["resources"].as_array().unwrap();
            let sandboxes = resources
                .iter()
                .find(|resource| resource["resource"] == "sandboxes")
                .expect("each version has it");
            assert_eq!(sandboxes["scope"], "Namespaced");
            assert_eq!(sandboxes["singularResource"], "sandbox");
            let kind = json!({"group": GROUP, "version": version["version"], "kind": "Sandbox"});
            assert_eq!(sandboxes["responseKind"], kind);
            assert!(!documents::texts(&sandboxes["verbs"]).is_empty());
            for optional in ["shortNames", "categories"] {
                documents::texts(&sandboxes[optional]);
            }
            let parts = sandboxes["subresources"].as_array().unwrap();
            assert!(parts.iter().any(|part| part["subresource"] == "status"));
            for part in parts {
                for field in ["group", "version", "kind"] {
                    assert!(part["responseKind"][field].is_string(), "{part}");
                }
                assert!(!documents::texts(&part["verbs"]).is_empty(), "{part}");
            }
        }
    }
}

/// The group's part of the aggregated document. kube-apiserver has it soon after it found the server available.
async fn aggregated(client: &Client) -> Value {
    let deadline = Instant::now() + SOON;
    loop {
        let answer = client.get_as("/apis", AGGREGATED).await;
        assert_eq!(answer.headers["content-type"], AGGREGATED);
        let document = answer.ok();
        assert_eq!(document["kind"], "APIGroupDiscoveryList");
        assert_eq!(document["apiVersion"], "apidiscovery.k8s.io/v2");
        let groups = document["items"].as_array().unwrap();
        let group = groups.iter().find(|item| item["metadata"]["name"] == GROUP);
        let is_whole = |group: &&Value| group["versions"][0]["resources"][0].is_object();
        if let Some(group) = group.filter(is_whole) {
            return group.clone();
        }
        assert!(Instant::now() < deadline, "{document:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn c_053(subject: &Subject) {
    let client = subject.direct();
    let since = Instant::now();
    let first = client.get_as("/apis", AGGREGATED).await;
    // The aggregator's own limit.
    assert!(since.elapsed() < Duration::from_secs(5));
    let tag = documents::entity_tag(&first);
    assert_eq!(first.headers["vary"], "Accept");
    assert_eq!(first.headers["cache-control"], "public");
    let again = async |tag: &str| {
        let headers = [("accept", AGGREGATED), ("if-none-match", tag)];
        client.send("GET", "/apis", &headers, "").await
    };
    let known = again(&tag).await;
    assert_eq!((known.status.as_u16(), known.bytes.len()), (304, 0));
    assert_eq!(known.headers["etag"], tag.as_str());
    let other = again("\"other\"").await;
    assert_eq!(other.status, 200);
    assert_eq!(other.bytes, first.bytes);
}

async fn c_054(subject: &Subject) {
    let mut server = subject.starting_server().await;
    // Who asks where this one is refused: the aggregator's fallback, with no rights of its own.
    let fallback = server.client_as("system:kube-aggregator");
    let client = server.client();
    for accept in [AGGREGATED, "application/json"] {
        let answer = client.get_as("/apis", accept).await;
        answer.expect(503, "ServiceUnavailable");
        assert!(answer.retry_after().is_some());
    }
    fallback.get(API).await.expect(503, "ServiceUnavailable");
    subject.let_start().await;
    let versions = async || {
        let answer = client.get_as("/apis", AGGREGATED).await;
        if answer.status != 200 {
            answer.expect(503, "ServiceUnavailable");
            return None;
        }
        Some(answer.body["items"][0]["versions"].clone())
    };
    let deadline = Instant::now() + SOON;
    let first = loop {
        if let Some(versions) = versions().await {
            break versions;
        }
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    server.ready().await;
    assert_eq!(Some(&first), versions().await.as_ref());
    for (index, version) in ["v1beta1", "v1alpha1"].into_iter().enumerate() {
        assert_eq!(first[index]["version"], version);
        assert_eq!(first[index]["resources"][0]["resource"], "sandboxes");
    }
    let fallback = fallback.get(API).await;
    assert_eq!(fallback.headers["content-type"], "application/json");
    assert_eq!(fallback.ok()["kind"], "APIResourceList");
}

async fn c_055(subject: &Subject) {
    let path = format!("/apis/{GROUP}");
    for client in subject.both_ways() {
        let list = client.get_as("/apis", "application/json").await;
        assert_eq!(list.headers["content-type"], "application/json");
        let list = list.ok();
        assert_eq!(list["kind"], "APIGroupList");
        assert_eq!(list["apiVersion"], "v1");
        let groups = list["groups"].as_array().unwrap();
        let listed = groups.iter().find(|group| group["name"] == GROUP).unwrap();
        let group = client.get(&path).await.ok();
        assert_eq!(group["kind"], "APIGroup");
        assert_eq!(group["apiVersion"], "v1");
        for group in [listed, &group] {
            let preferred =
                json!({"groupVersion": format!("{GROUP}/v1beta1"), "version": "v1beta1"});
            assert_eq!(group["preferredVersion"], preferred);
            assert_eq!(group["versions"][0], preferred);
        }
        assert_eq!(group["versions"], listed["versions"]);
    }
    let unknown = "application/json;g=apidiscovery.k8s.io;v=v2;as=Another";
    let refused = subject.direct().get_as("/apis", unknown).await;
    refused.expect(406, "NotAcceptable");
}

async fn c_056(subject: &Subject) {
    let client = subject.direct();
    let group = client.get(&format!("/apis/{GROUP}")).await.ok();
    let aggregated = aggregated(&client).await;
    let versions = group["versions"].as_array().unwrap();
    assert_eq!(
        versions.len(),
        aggregated["versions"].as_array().unwrap().len()
    );
    let v2 = client.get_as("/openapi/v2", "application/json").await.ok();
    for (index, version) in versions.iter().enumerate() {
        let version = version["version"].as_str().unwrap();
        let api = format!("/apis/{GROUP}/{version}");
        let listed = documents::of_list(&client.get(&api).await.ok());
        assert!(listed.contains_key("sandboxes"));
        let shown = documents::of_aggregated(&aggregated["versions"][index]);
        assert_eq!(listed, shown, "{version}");
        let v3 = client.get(&documents::openapi_path(version)).await.ok();
        let listed = documents::without_watch(listed);
        assert_eq!(listed, documents::of_openapi(&v3, &api), "{version} v3");
        assert_eq!(listed, documents::of_openapi(&v2, &api), "{version} v2");
    }
}

async fn c_057(subject: &Subject) {
    let parts = |list: &Value| -> BTreeSet<String> {
        let names = list["resources"].as_array().unwrap().iter();
        names
            .filter_map(|resource| resource["name"].as_str()?.strip_prefix("sandboxes/"))
            .map(str::to_owned)
            .collect()
    };
    for client in subject.both_ways() {
        for api in [API, OLD_API] {
            let list = client.get(api).await.ok();
            let sandboxes = documents::resource(&list, "sandboxes");
            assert_eq!(sandboxes["shortNames"], json!(["sandbox"]));
            assert_eq!(sandboxes["singularName"], "sandbox");
            assert_eq!(sandboxes["kind"], "Sandbox");
            let path = format!("{api}/namespaces/{}/sandboxes", subject.namespace);
            assert_eq!(client.get(&path).await.ok()["kind"], "SandboxList");
            assert!(parts(&list).contains("status"));
            assert_eq!(parts(&list).contains("scale"), api == OLD_API, "{api}");
        }
    }
    let list = subject.direct().get(OLD_API).await.ok();
    let scale = documents::resource(&list, "sandboxes/scale");
    let kind = [&scale["group"], &scale["version"], &scale["kind"]];
    assert_eq!(kind, ["autoscaling", "v1", "Scale"]);
    subject.create("a").await;
    let path = format!(
        "{OLD_API}/namespaces/{}/sandboxes/a/scale",
        subject.namespace
    );
    let kubectl = subject.kubectl();
    for client in subject.both_ways() {
        let scale = client.get(&path).await.ok();
        assert_eq!(scale["kind"], "Scale");
        assert_eq!(scale["spec"]["replicas"], 1);
        assert_eq!(scale["status"]["replicas"], 1);
        let selector = scale["status"]["selector"].as_str().unwrap();
        assert!(selector.starts_with("agents.x-k8s.io/sandbox-name-hash="));
        for (replicas, mode) in [("0", "Suspended"), ("1", "Running")] {
            let replicas = format!("--replicas={replicas}");
            let old = "sandboxes.v1alpha1.agents.x-k8s.io/a";
            let args = ["scale", old, &replicas, "--namespace", &subject.namespace];
            kubectl.stdout(&args).await;
            let object = client.get(&subject.item("a")).await.ok();
            assert_eq!(object["spec"]["operatingMode"], mode);
        }
    }
}

async fn c_058(subject: &Subject) {
    subject.create("a").await;
    let warns = |answer: &crate::caller::Answer| {
        let mut warnings = answer.headers.get_all("warning").iter();
        warnings.any(|warning| warning == DEPRECATION)
    };
    let mut old = subject.mk("b");
    old["apiVersion"] = "agents.x-k8s.io/v1alpha1".into();
    let namespaced = |api: &str| format!("{api}/namespaces/{}/sandboxes", subject.namespace);
    let (collection, current_collection) = (namespaced(OLD_API), namespaced(API));
    let item = format!("{collection}/a");
    for client in subject.both_ways() {
        let shown = client.get(&item).await;
        assert!(warns(&shown));
        let shown = shown.body.to_string();
        for (method, path, body) in [
            ("GET", format!("{collection}?limit=1"), ""),
            ("GET", format!("{collection}?watch=1&timeoutSeconds=1"), ""),
            ("GET", format!("{collection}/absent"), ""),
            ("GET", format!("{item}/status"), ""),
            ("POST", format!("{collection}?{ALL}"), &old.to_string()),
            ("PUT", format!("{item}?{ALL}"), &shown),
            ("PATCH", format!("{item}?{ALL}"), "{}"),
            ("DELETE", format!("{item}?{ALL}"), ""),
            ("DELETE", format!("{collection}?{ALL}"), ""),
        ] {
            let headers: &[(&str, &str)] = match method {
                "PATCH" => &[("content-type", MERGE)],
                _ => &[],
            };
            let answer = client.send(method, &path, headers, body).await;
            assert!(warns(&answer), "{method} {path}: {:?}", answer.headers);
            let expected = if path.ends_with("absent") { 404 } else { 200 };
            let code = answer.status.as_u16();
            assert!(code == expected || code == 201, "{method} {path}: {code}");
        }
        assert!(!warns(&client.get(&current_collection).await));
    }
}

async fn c_059(subject: &Subject) {
    let hash = |text: &str| BASE64_STANDARD.encode(&Sha256::digest(text)[..8]);
    let ours = "agents.x-k8s.io/v1beta1/Sandbox";
    // A custom resource hashes its own names.
    let expected = [hash(ours), hash(&twin::for_twin(ours))];
    for client in subject.both_ways() {
        let list = client.get(API).await.ok();
        let given = documents::resource(&list, "sandboxes").get("storageVersionHash");
        let is_right = |given: &Value| expected.iter().any(|hash| given == hash);
        assert!(given.is_none_or(is_right), "{given:?}");
    }
}

async fn c_060(subject: &Subject) {
    for path in ["/nowhere", "/apis/another.example.org", "/openapi/v4"] {
        let answer = subject.direct().get(path).await;
        assert_eq!(answer.status, 404, "{path}");
        let media_type = answer.headers["content-type"].to_str().unwrap();
        assert_eq!(media_type.split(';').next(), Some("text/plain"), "{path}");
        assert_eq!(answer.bytes.trim_ascii(), b"404 page not found", "{path}");
    }
    let mut server = subject.starting_server().await;
    let starting = server.client().get("/nowhere").await;
    starting.expect(503, "ServiceUnavailable");
    assert_eq!(starting.retry_after(), Some(5));
    subject.let_start().await;
    server.ready().await;
    assert_eq!(server.client().get("/nowhere").await.status, 404);
}

async fn c_061(subject: &Subject) {
    let answer = subject.direct().get("/version").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let version = answer.ok();
    let (major, minor) = (&version["major"], &version["minor"]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    assert!(digits(&text(major)) && digits(&text(minor)), "{version}");
    let begins = format!("v{}.{}.", text(major), text(minor));
    assert!(
        text(&version["gitVersion"]).starts_with(&begins),
        "{version}"
    );
    for field in [
        "gitCommit",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ] {
        assert!(version[field].is_string(), "{field}");
    }
}
