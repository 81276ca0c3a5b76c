//! Discovery: what kubectl, the aggregator and the controllers believe to be there.

use serde_json::{Value, json};

use crate::{
    golden,
    harness::{ADMIN, ALICE, Cluster, Door, SANDBOXES},
};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

#[tokio::test]
async fn the_documents_are_as_reviewed() {
    let cluster = Cluster::of(0).await;
    let get = async |path: &str| cluster.client.get(path).await.json();
    golden::check("discovery/groups.json", &get("/apis").await);
    golden::check("discovery/group.json", &get("/apis/agents.x-k8s.io").await);
    let resources = get("/apis/agents.x-k8s.io/v1beta1").await;
    golden::check("discovery/resources.json", &resources);
    let aggregated = cluster.client.get_as("/apis", AGGREGATED).await.json();
    golden::check("discovery/aggregated.json", &aggregated);
}

#[tokio::test]
async fn the_aggregated_document_repeats_what_was_asked_for() {
    let cluster = Cluster::of(0).await;
    let v2 = cluster.client.get_as("/apis", AGGREGATED).await;
    assert_eq!(v2.header("content-type"), AGGREGATED);
    assert_eq!(v2.json()["apiVersion"], "apidiscovery.k8s.io/v2");
    let older = AGGREGATED.replace("v=v2", "v=v2beta1");
    let v2beta1 = cluster.client.get_as("/apis", &older).await;
    assert_eq!(v2beta1.header("content-type"), older);
    assert_eq!(v2beta1.json()["apiVersion"], "apidiscovery.k8s.io/v2beta1");
    // What the aggregator sends: everything it can read, the best first.
    let all = format!("{AGGREGATED},{older},application/json");
    let best = cluster.client.get_as("/apis", &all).await;
    assert_eq!(best.header("content-type"), AGGREGATED);
    let plain = cluster.client.get_as("/apis", "application/json").await;
    assert_eq!(plain.header("content-type"), "application/json");
    assert_eq!(plain.json()["kind"], "APIGroupList");
    let only = "application/json;g=apidiscovery.k8s.io;v=v9;as=Other";
    cluster
        .client
        .get_as("/apis", only)
        .await
        .refusal(406, "NotAcceptable");
    for path in ["/apis/agents.x-k8s.io", "/apis/agents.x-k8s.io/v1beta1"] {
        let ordinary = cluster.client.get_as(path, AGGREGATED).await;
        assert_eq!(ordinary.code(), 200, "{path}");
        assert_eq!(ordinary.header("content-type"), "application/json");
    }
}

#[tokio::test]
async fn the_tag_saves_the_document() {
    let cluster = Cluster::of(0).await;
    let first = cluster.client.get_as("/apis", AGGREGATED).await;
    let tag = first.header("etag").to_owned();
    assert!(
        tag.starts_with('"') && tag.ends_with('"') && tag.len() > 10,
        "{tag}"
    );
    assert_eq!(first.header("vary"), "Accept");
    assert_eq!(first.header("cache-control"), "public");
    let headers = [("accept", AGGREGATED), ("if-none-match", tag.as_str())];
    let again = cluster.client.request("GET", "/apis", &headers, "").await;
    assert_eq!((again.code(), again.body.len()), (304, 0));
    assert_eq!(again.header("etag"), tag);
    let headers = [("accept", AGGREGATED), ("if-none-match", "\"other\"")];
    let other = cluster.client.request("GET", "/apis", &headers, "").await;
    assert_eq!(other.code(), 200);
}

#[tokio::test]
async fn a_list_of_types_that_names_json_gets_json() {
    let cluster = Cluster::of(1).await;
    let both = format!("{PROTOBUF},application/json");
    for path in [
        "/apis",
        "/apis/agents.x-k8s.io",
        "/apis/agents.x-k8s.io/v1beta1",
    ] {
        assert_eq!(
            cluster.client.get_as(path, &both).await.code(),
            200,
            "{path}"
        );
        let protobuf = cluster.client.get_as(path, PROTOBUF).await;
        protobuf.refusal(406, "NotAcceptable");
    }
}

#[tokio::test]
async fn every_verb_that_is_advertised_is_served_and_no_other() {
    let cluster = Cluster::of(0).await;
    let list = cluster
        .client
        .get("/apis/agents.x-k8s.io/v1beta1")
        .await
        .json();
    let resource = &list["resources"][0];
    assert_eq!(resource["name"], "sandboxes");
    assert_eq!(resource["shortNames"], json!(["sandbox"]));
    let methods = [
        ("get", "GET", "/x"),
        ("list", "GET", ""),
        ("create", "POST", ""),
        ("update", "PUT", "/x"),
        ("patch", "PATCH", "/x"),
        ("delete", "DELETE", "/x"),
        ("deletecollection", "DELETE", ""),
    ];
    let verbs = resource["verbs"].as_array().unwrap();
    assert_eq!(verbs.len(), methods.len() + 1, "these and watch");
    for (verb, method, path) in methods {
        assert!(verbs.contains(&json!(verb)), "{verb}");
        let path = format!("{SANDBOXES}{path}");
        let answer = cluster.client.request(method, &path, &[], "").await;
        assert_ne!(answer.code(), 405, "{verb}");
    }
    for subresource in &list["resources"].as_array().unwrap()[1..] {
        let name = subresource["name"].as_str().unwrap();
        let Some(("sandboxes", name)) = name.split_once('/') else {
            continue;
        };
        let path = format!("{SANDBOXES}/x/{name}");
        let verbs = subresource["verbs"].as_array().unwrap();
        let methods = [
            ("create", "POST"),
            ("delete", "DELETE"),
            ("get", "GET"),
            ("patch", "PATCH"),
            ("update", "PUT"),
        ];
        for (verb, method) in methods {
            let answer = cluster.client.request(method, &path, &[], "").await;
            let served = verbs.contains(&json!(verb));
            assert_eq!(answer.code() != 405, served, "{verb} {name}");
        }
    }
}

#[tokio::test]
async fn before_the_server_is_ready_no_document_is_missing() {
    let door = Door::open().await;
    let client = door.client(ADMIN).await;
    for path in [
        "/apis",
        "/openapi/v3",
        "/openapi/v2",
        "/apis/agents.x-k8s.io/v1beta1",
        SANDBOXES,
    ] {
        let status = client.get(path).await.refusal(503, "ServiceUnavailable");
        assert_eq!(status["details"]["retryAfterSeconds"], 5, "{path}");
    }
    assert_eq!(client.get("/livez").await.code(), 200);
}

#[tokio::test]
async fn documents_are_for_everybody_who_is_let_in() {
    let cluster = Cluster::of(0).await;
    let alice = cluster.door.client(ALICE).await;
    let nobody = cluster.door.client("").await;
    for client in [&alice, &nobody] {
        assert_eq!(client.get("/apis").await.code(), 200);
    }
    let wrong = cluster.door.client("wrong").await;
    wrong.get("/apis").await.refusal(401, "Unauthorized");
}

#[tokio::test]
async fn the_version_is_that_of_the_rules_that_are_followed() {
    let cluster = Cluster::of(0).await;
    let version: Value = cluster.client.get("/version").await.json();
    assert_eq!(
        (&version["major"], &version["minor"]),
        (&json!("1"), &json!("37"))
    );
}
