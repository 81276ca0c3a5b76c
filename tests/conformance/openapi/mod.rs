//! The documents, and what they say.

mod schemas;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::Value;

use self::schemas::{c_068, c_069, c_070, c_073};
use super::{client::Client, documents, subject::Subject};
use crate::{api_service::GROUP, caller::Answer};

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

/// A document as kube-apiserver has it, once it does: until then it has none, or an older one.
async fn aggregated(client: &Client, path: &str, is_there: impl Fn(&Value) -> bool) -> Answer {
    let deadline = Instant::now() + AGGREGATED_WITHIN;
    loop {
        let answer = client.get_as(path, "application/json").await;
        match answer.status.as_u16() {
            200 if is_there(&answer.body) => return answer,
            200 | 404 | 503 => {}
            other => panic!("{path}: {other}"),
        }
        assert!(Instant::now() < deadline, "{path}: {}", answer.status);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A document at the server's own port, where it is at once. A custom resource has only kube-apiserver's.
async fn own(subject: &Subject, client: &Client, path: &str) -> Answer {
    if !subject.has_nodes() {
        return aggregated(client, path, |_| true).await;
    }
    let answer = client.get_as(path, "application/json").await;
    assert_eq!(answer.status, 200, "{path}: {:#}", answer.body);
    answer
}

/// The v3 document of a version, as kubectl gets it.
async fn v3(subject: &Subject, version: &str) -> Value {
    let path = documents::openapi_path(version);
    let document = aggregated(&subject.proxied(), &path, |_| true).await;
    document.ok()
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
    let merged = aggregated(&subject.proxied(), "/openapi/v3", is_there)
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
    let (direct, proxied) = (subject.direct_as(&user), subject.proxied_as(&user));
    let answers = [
        own(subject, &direct, &path).await,
        aggregated(&proxied, &path, |_| true).await,
    ];
    for (client, answer) in [direct, proxied].into_iter().zip(answers) {
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
    let key = format!("apis/{GROUP}/v1beta1");
    let is_there = |index: &Value| index["paths"][&key].is_object();
    let (direct, proxied) = (subject.direct(), subject.proxied());
    let indices = [
        own(subject, &direct, "/openapi/v3").await,
        aggregated(&proxied, "/openapi/v3", is_there).await,
    ];
    for (client, index) in [direct, proxied].into_iter().zip(indices) {
        let index = index.ok();
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
    aggregated(&subject.proxied(), "/openapi/v2", is_there).await;
}

async fn c_072(subject: &Subject) {
    let direct = subject.direct();
    let v2 = direct.get_as("/openapi/v2", "application/json").await.ok();
    let is_there = |document: &Value| document["paths"][COLLECTION].is_object();
    let merged = aggregated(&subject.proxied(), "/openapi/v2", is_there)
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
