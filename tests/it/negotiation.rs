//! What answers look like: their type, their shape, their encoding, their headers.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    harness::{Answer, Cluster, METADATA, METADATA_LIST, SANDBOXES, SOON, TABLE, item, mk_sandbox},
    widgets::{WIDGETS, Workshop},
};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

#[tokio::test]
async fn anything_means_json() {
    let cluster = Cluster::of(1).await;
    for accept in [
        "*/*",
        "application/*",
        "application/json",
        "application/json; charset=utf-8",
    ] {
        for path in [SANDBOXES, &item("sb-000000")] {
            let answer = cluster.client.get_as(path, accept).await;
            assert_eq!(
                (answer.code(), answer.header("content-type")),
                (200, "application/json")
            );
        }
    }
    let bare = cluster.client.get(SANDBOXES).await;
    assert_eq!(bare.header("content-type"), "application/json");
}

#[tokio::test]
async fn protobuf_falls_through_to_json_and_stands_alone_for_nothing() {
    let cluster = Cluster::of(2).await;
    let first = item("sb-000000");
    let both = format!("{PROTOBUF},application/json");
    for path in [SANDBOXES, &first] {
        let answer = cluster.client.get_as(path, &both).await;
        assert_eq!(
            (answer.code(), answer.header("content-type")),
            (200, "application/json")
        );
        for only in [PROTOBUF, "application/cbor", "text/html"] {
            let refused = cluster.client.get_as(path, only).await;
            let status = refused.refusal(406, "NotAcceptable");
            assert!(
                status["message"]
                    .as_str()
                    .unwrap()
                    .contains("application/json")
            );
            assert_eq!(refused.header("content-type"), "application/json");
        }
    }
    let metadata = format!(
        "{};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{METADATA_LIST}",
        PROTOBUF
    );
    let answer = cluster.client.get_as(SANDBOXES, &metadata).await;
    assert_eq!(answer.json()["kind"], "PartialObjectMetadataList");
    let table = format!("{};as=Table;v=v1;g=meta.k8s.io,{TABLE}", PROTOBUF);
    assert_eq!(
        cluster.client.get_as(SANDBOXES, &table).await.json()["kind"],
        "Table"
    );
    let watch = format!("{SANDBOXES}?watch=true");
    let watch = cluster.client.watch_as(&watch, &both).await;
    assert_eq!(watch.headers["content-type"], "application/json");
    let headers = [("accept", both.as_str())];
    let deleted = cluster.client.request("DELETE", &first, &headers, "").await;
    assert_eq!(deleted.code(), 200);
}

#[tokio::test]
async fn yaml_is_spoken_in_and_out() {
    let cluster = Cluster::of(1).await;
    let yaml = |answer: &Answer| -> Value {
        assert_eq!(answer.header("content-type"), "application/yaml");
        serde_saphyr::from_str(&answer.text()).unwrap()
    };
    let json = cluster.client.get(item("sb-000000")).await.json();
    let answer = cluster
        .client
        .get_as(item("sb-000000"), "application/yaml")
        .await;
    assert_eq!(yaml(&answer), json);
    let list = cluster.client.get_as(SANDBOXES, "application/yaml").await;
    assert_eq!(yaml(&list)["items"], json!([json]));
    let missing = cluster.client.get_as(item("x"), "application/yaml").await;
    assert_eq!(
        (missing.code(), &yaml(&missing)["reason"]),
        (404, &json!("NotFound"))
    );
}

#[tokio::test]
async fn the_wrong_metadata_shape_is_not_acceptable() {
    let cluster = Cluster::of(1).await;
    cluster
        .client
        .get_as(SANDBOXES, METADATA)
        .await
        .refusal(406, "NotAcceptable");
    cluster
        .client
        .get_as(item("sb-000000"), METADATA_LIST)
        .await
        .refusal(406, "NotAcceptable");
    let one = cluster
        .client
        .get_as(item("sb-000000"), METADATA)
        .await
        .json();
    assert_eq!(
        (&one["kind"], &one["apiVersion"]),
        (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1"))
    );
    let whole = cluster.client.get(item("sb-000000")).await.json();
    assert_eq!(one["metadata"], whole["metadata"]);
    assert_eq!(one.get("spec"), None);
}

#[tokio::test]
async fn an_error_keeps_its_code_whatever_is_accepted() {
    let cluster = Cluster::of(0).await;
    let missing = cluster.client.get_as(item("x"), TABLE).await;
    missing.refusal(404, "NotFound");
    let created = [("accept", TABLE)];
    let body = mk_sandbox("a").to_string();
    let refused = cluster
        .client
        .request("POST", SANDBOXES, &created, body)
        .await;
    refused.refusal(406, "NotAcceptable");
    assert_eq!(
        cluster.writes_at_nodes(),
        0,
        "what cannot be told is not done"
    );
}

#[tokio::test]
async fn long_answers_are_compressed_for_those_who_ask() {
    let workshop = Workshop::open().await;
    workshop.put_many(5_000);
    let plain = workshop.client.get(WIDGETS).await;
    assert!(plain.body.len() > 128 << 10);
    assert!(plain.headers.get("content-encoding").is_none());
    assert_eq!(plain.header("vary"), "Accept-Encoding");
    let headers = [("accept-encoding", "deflate, gzip")];
    let packed = workshop.client.request("GET", WIDGETS, &headers, "").await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert_eq!(packed.header("vary"), "Accept-Encoding");
    assert!(packed.body.len() * 4 < plain.body.len());
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(&*packed.body)
        .read_to_end(&mut text)
        .unwrap();
    assert_eq!(text, plain.body);

    let short = format!("{WIDGETS}?limit=10");
    let short = workshop.client.request("GET", &short, &headers, "").await;
    assert!(short.headers.get("content-encoding").is_none());
    let document = workshop
        .client
        .request("GET", "/openapi/v2", &headers, "")
        .await;
    if let Some(encoding) = document.headers.get("content-encoding") {
        assert_eq!(encoding, "gzip");
        assert!(document.header("etag").starts_with('"'));
    }
}

/// The text of members of gzip that have all come, and whether each can be read without its end.
fn unpacked(members: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = members;
    while !rest.is_empty() {
        let begin = rest;
        let mut member = String::new();
        flate2::bufread::GzDecoder::new(&mut rest)
            .read_to_string(&mut member)
            .unwrap();
        // The last block, the checksum and the length; what is left ends with a flush.
        let flushed = &begin[..begin.len() - rest.len() - 10];
        let mut early = Vec::new();
        let cut = flate2::bufread::GzDecoder::new(flushed).read_to_end(&mut early);
        assert!(cut.is_err(), "it has no end");
        assert_eq!(String::from_utf8(early).unwrap(), member);
        text += &member;
    }
    text
}

#[tokio::test]
async fn a_watch_that_begins_with_a_list_is_compressed_and_nothing_held_back() {
    let workshop = Workshop::open().await;
    workshop.put_many(2_000);
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let path = format!("{WIDGETS}?{query}");
    let mut plain = workshop.client.watch(&path).await;
    let headers = [("accept-encoding", "gzip")];
    let packed = workshop.client.open("GET", &path, &headers, "").await;
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    assert_eq!(packed.headers()["vary"], "Accept-Encoding");
    assert_eq!(packed.headers()["content-type"], "application/json");
    let mut packed = packed.into_body();
    let mut next = async |expected: &str| {
        let mut members = Vec::new();
        loop {
            let frame = timeout(SOON, packed.frame()).await.expect("more");
            members.extend(frame.unwrap().unwrap().into_data().unwrap());
            let whole = MultiGzDecoder::new(&*members).read_to_end(&mut Vec::new());
            // Chunks are whole members, frames may be less.
            if whole.is_ok() && unpacked(&members).len() >= expected.len() {
                break;
            }
        }
        assert_eq!(unpacked(&members), expected);
        members.len()
    };
    let mut initial = String::new();
    while !initial.contains("initial-events-end") {
        initial += std::str::from_utf8(&plain.line().await.unwrap()).unwrap();
    }
    assert!(next(&initial).await * 4 < initial.len());
    for color in ["blue", "green"] {
        workshop.put("later", color);
        let line = plain.line().await.unwrap();
        next(std::str::from_utf8(&line).unwrap()).await;
    }
}

#[tokio::test]
async fn other_watches_are_never_compressed() {
    let workshop = Workshop::open().await;
    workshop.put_many(2_000);
    let headers = [("accept-encoding", "gzip")];
    let initial = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    for query in ["", "&allowWatchBookmarks=true", initial] {
        let path = format!("{WIDGETS}?watch=true{query}");
        let watch = workshop.client.open("GET", &path, &headers, "").await;
        assert_eq!(watch.status(), 200);
        assert!(!watch.headers().contains_key("content-encoding"), "{query}");
    }
    let path = format!("{WIDGETS}?watch=true{initial}&allowWatchBookmarks=true");
    let path = path.replace("NotOlderThan", "Exact");
    let refused = workshop.client.request("GET", &path, &headers, "").await;
    assert!(!refused.headers.contains_key("content-encoding"));
    refused.refusal(422, "Invalid");
}

#[tokio::test]
async fn people_get_indented_json() {
    let cluster = Cluster::of(1).await;
    let path = item("sb-000000");
    let plain = cluster.client.get(&path).await;
    assert!(!plain.text().contains('\n'));
    let expected = serde_json::to_string_pretty(&plain.json()).unwrap() + "\n";
    let asked = cluster.client.get(format!("{path}?pretty=true")).await;
    let curl = [("user-agent", "curl/8.5.0")];
    let by_agent = cluster.client.request("GET", &path, &curl, "").await;
    let refused = format!("{path}?pretty=false");
    let not_asked = cluster.client.request("GET", &refused, &curl, "").await;
    assert!(asked.text().starts_with("{\n  \"apiVersion\": "));
    for pretty in [asked, by_agent] {
        let reparsed = serde_json::to_string_pretty(&pretty.json()).unwrap() + "\n";
        assert_eq!(reparsed.len(), pretty.text().len());
        assert_eq!(reparsed, expected);
    }
    assert_eq!(not_asked.body, plain.body);
    let error = cluster.client.get(format!("{}?pretty=1", item("x"))).await;
    error.refusal(404, "NotFound");
    assert!(error.text().contains("\n  \"code\": 404"));
    let long = cluster
        .client
        .request("GET", &format!("{SANDBOXES}?pretty=true"), &[], "")
        .await;
    assert_eq!(long.names(), ["sb-000000"]);
    let watch = cluster
        .client
        .open("GET", &format!("{SANDBOXES}?watch=true"), &curl, "")
        .await;
    assert_eq!(watch.status(), 200, "a line an event, whoever reads");
}

#[tokio::test]
async fn a_head_is_a_get_without_its_body() {
    let cluster = Cluster::of(1).await;
    for path in [
        SANDBOXES,
        &item("sb-000000"),
        "/apis",
        "/readyz",
        &item("x"),
        "/nowhere",
    ] {
        let get = cluster.client.get(path).await;
        let head = cluster.client.request("HEAD", path, &[], "").await;
        assert_eq!(head.code(), get.code(), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"));
        assert_eq!(
            head.header("content-length"),
            get.body.len().to_string(),
            "{path}"
        );
        assert!(head.body.is_empty(), "{path}");
    }
    let watch = format!("{SANDBOXES}?watch=true");
    let watch = cluster.client.request("HEAD", &watch, &[], "").await;
    assert_eq!((watch.code(), watch.body.len()), (200, 0), "and ends");
}

#[tokio::test]
async fn every_answer_has_an_audit_id_and_is_not_kept() {
    let cluster = Cluster::of(0).await;
    for path in [
        SANDBOXES,
        &item("x"),
        "/apis",
        "/livez",
        "/metrics",
        "/nowhere",
    ] {
        let answer = cluster.client.get(path).await;
        assert_eq!(answer.header("audit-id").len(), 36, "{path}");
        assert_eq!(
            answer.header("cache-control"),
            "no-cache, private",
            "{path}"
        );
        let headers = [("audit-id", "mine-7")];
        let echoed = cluster.client.request("GET", path, &headers, "").await;
        assert_eq!(echoed.header("audit-id"), "mine-7", "{path}");
    }
    let long = "x".repeat(300);
    let headers = [("audit-id", long.as_str())];
    let replaced = cluster.client.request("GET", SANDBOXES, &headers, "").await;
    assert_eq!(replaced.header("audit-id").len(), 36);
}

#[tokio::test]
async fn warnings_are_quoted_and_bounded() {
    let workshop = Workshop::open().await;
    let get = workshop.client.get(WIDGETS).await;
    let deprecation = r#"299 - "example.com/v1 Widget is deprecated""#;
    assert_eq!(get.headers("warning"), [deprecation], "on every verb");
    let many = json!({"metadata": {"name": "w"}, "spec": {"color": "warn-200"}});
    let created = workshop.client.post(WIDGETS, &many).await;
    assert_eq!(created.code(), 201);
    let warnings = created.headers("warning");
    assert!(warnings.len() > 1 && warnings.len() < 100);
    assert!(
        warnings
            .iter()
            .all(|text| text.starts_with("299 - \"") && text.ends_with('"'))
    );
    assert!(warnings.iter().map(|text| text.len()).sum::<usize>() < 10_000);
}
