//! Tables: what `kubectl get` prints.

use sandbox_apiserver::fleet::{Sandbox, Used};
use serde_json::{Value, json};

use crate::{
    golden,
    harness::{Cluster, SANDBOXES, TABLE, item},
};

#[tokio::test]
async fn the_columns_are_as_reviewed() {
    let cluster = Cluster::of(1).await;
    let mut table = cluster.client.get_as(SANDBOXES, TABLE).await.json();
    table["metadata"] = json!("(varies)");
    // Values that differ between runs.
    for row in table["rows"].as_array_mut().unwrap() {
        let cells = row["cells"].as_array_mut().unwrap();
        for index in [3, 10, 11] {
            assert!(cells[index].is_string());
            cells[index] = json!("(varies)");
        }
        row["object"]["metadata"] = json!("(varies)");
    }
    golden::check("table.json", &table);
}

#[tokio::test]
async fn the_first_column_is_the_name_and_every_row_fills_all_columns() {
    let cluster = Cluster::of(4).await;
    let answer = cluster.client.get_as(SANDBOXES, TABLE).await;
    assert_eq!(answer.header("content-type"), "application/json");
    let table = answer.json();
    assert_eq!(
        (&table["kind"], &table["apiVersion"]),
        (&json!("Table"), &json!("meta.k8s.io/v1"))
    );
    let columns = table["columnDefinitions"].as_array().unwrap();
    assert_eq!(columns[0]["name"], "Name");
    assert_eq!(
        (&columns[0]["type"], &columns[0]["format"]),
        (&json!("string"), &json!("name"))
    );
    let narrow: Vec<_> = columns
        .iter()
        .filter(|c| c["priority"] == 0)
        .map(|c| &c["name"])
        .collect();
    assert_eq!(narrow, ["Name", "Ready", "Reason", "Age"]);
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        let cells = row["cells"].as_array().unwrap();
        assert_eq!(cells.len(), columns.len());
        assert!(
            cells
                .iter()
                .all(|cell| !cell.is_object() && !cell.is_array())
        );
        assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(cells[0], row["object"]["metadata"]["name"]);
    }
    assert!(table["metadata"]["resourceVersion"].is_string());
}

#[tokio::test]
async fn rows_carry_what_the_client_includes() {
    let cluster = Cluster::of(1).await;
    for path in [SANDBOXES.to_owned(), item("sb-000000")] {
        let row = async |include: &str| -> Value {
            let path = format!("{path}?includeObject={include}");
            let table = cluster.client.get_as(path, TABLE).await.json();
            table["rows"][0]["object"].clone()
        };
        assert_eq!(row("None").await, Value::Null);
        assert_eq!(row("Metadata").await["kind"], "PartialObjectMetadata");
        assert_eq!(row("").await["kind"], "PartialObjectMetadata");
        let object = row("Object").await;
        assert_eq!(object, cluster.client.get(item("sb-000000")).await.json());
        let unknown = cluster
            .client
            .get_as(format!("{path}?includeObject=All"), TABLE)
            .await;
        unknown.refusal(400, "BadRequest");
    }
}

#[tokio::test]
async fn tables_of_the_older_version_and_of_pages() {
    let cluster = Cluster::of(3).await;
    let older = TABLE.replace("v=v1", "v=v1beta1");
    let table = cluster.client.get_as(SANDBOXES, &older).await.json();
    assert_eq!(table["apiVersion"], "meta.k8s.io/v1beta1");
    // kubectl's own header, page by page.
    let kubectl = format!("{TABLE},{older},application/json");
    let first = cluster
        .client
        .get_as(format!("{SANDBOXES}?limit=2"), &kubectl)
        .await;
    assert_eq!(first.names(), ["sb-000000", "sb-000001"]);
    let metadata = &first.json()["metadata"];
    assert_eq!(metadata["remainingItemCount"], 1);
    let token = metadata["continue"].as_str().unwrap();
    let path = format!("{SANDBOXES}?limit=2&continue={token}");
    let second = cluster.client.get_as(path, &kubectl).await;
    assert_eq!(second.names(), ["sb-000002"]);
}

#[tokio::test]
async fn a_watched_table_defines_its_columns_once() {
    let cluster = Cluster::of(1).await;
    let path = format!("{SANDBOXES}?watch=true&resourceVersion=0");
    let mut watch = cluster.client.watch_as(path, TABLE).await;
    let first = watch.event().await;
    assert!(first["object"]["columnDefinitions"].is_array());
    cluster.create("a").await;
    cluster.client.delete(item("a"), Value::Null).await;
    for expected in ["ADDED", "DELETED"] {
        let event = watch.event().await;
        assert_eq!(event["type"], expected);
        assert_eq!(event["object"]["kind"], "Table");
        assert_eq!(event["object"]["columnDefinitions"], Value::Null);
        assert_eq!(event["object"]["rows"][0]["cells"][0], "a");
        assert_eq!(event["object"]["rows"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn what_a_sandbox_uses_is_shown_as_it_is_when_a_row_is_made() {
    let cluster = Cluster::of(0).await;
    cluster.create("a").await;
    let Sandbox { node, claim, .. } = &cluster.fleet.store().get("default", "a").unwrap().value;
    let cells = async || {
        let table = cluster.client.get_as(SANDBOXES, TABLE).await.json();
        let cells = table["rows"][0]["cells"].as_array().unwrap().clone();
        [8, 9].map(|index| cells[index].as_str().unwrap().to_owned())
    };
    assert_eq!(cells().await, ["<unknown>", "<unknown>"]);
    let (mebibyte, head) = (1 << 20, cluster.fleet.store().head());
    for (cpus, total, used, expected) in [
        (2, 2_048, Some(143), ["2", "143Mi/2Gi"]),
        (1, 512, None, ["1", "<unknown>/512Mi"]),
        (1, 512, Some(0), ["1", "0Mi/512Mi"]),
    ] {
        let used: Option<u64> = used.map(|used| used * mebibyte);
        let used = Used::of_bytes(cpus, total * mebibyte, used);
        cluster.fleet.used(node, claim, used);
        assert_eq!(cells().await, expected);
    }
    assert_eq!(cluster.fleet.store().head(), head);
    // It stays through changes of the object.
    let labelled = json!({"metadata": {"labels": {"team": "x"}}});
    cluster.client.merge(item("a"), &labelled).await;
    assert_ne!(cluster.fleet.store().head(), head);
    assert_eq!(cells().await, ["1", "0Mi/512Mi"]);
    cluster.fleet.forget_used(node);
    assert_eq!(cells().await, ["<unknown>", "<unknown>"]);
    let pause = format!("{}/pause", item("a"));
    cluster.client.post(pause, &json!({})).await;
    assert_eq!(cells().await, ["<none>", "<none>"]);
}

#[tokio::test]
async fn a_paused_sandbox_shows_why_it_is_not_ready() {
    let cluster = Cluster::of(0).await;
    cluster.create("a").await;
    let paused = cluster
        .client
        .post(format!("{}/pause", item("a")), &json!({}))
        .await;
    assert_eq!(paused.code(), 200, "{}", paused.text());
    let table = cluster.client.get_as(SANDBOXES, TABLE).await.json();
    let cells = &table["rows"][0]["cells"];
    assert_eq!(
        (&cells[1], &cells[2]),
        (&json!("False"), &json!("SandboxSuspended"))
    );
}
