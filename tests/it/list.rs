//! LIST: one version, in order, in pages.

use futures::future::join_all;
use sandbox_apiserver::store::Limits;
use serde_json::{Value, json};

use crate::{
    harness::{ALL_SANDBOXES, Client, Cluster, METADATA_LIST, SANDBOXES, TABLE},
    widgets::{ALL_WIDGETS, WIDGETS, Workshop},
};

/// Every page of a list, from its first.
async fn pages(client: &Client, path: &str) -> Vec<Value> {
    let mut pages: Vec<Value> = Vec::new();
    loop {
        let last = pages.last().map(|page| &page["metadata"]["continue"]);
        let page = match last {
            Some(Value::String(token)) => client.get(format!("{path}&continue={token}")).await,
            Some(_) => return pages,
            None => client.get(path).await,
        };
        assert_eq!(page.code(), 200, "{}", page.text());
        pages.push(page.json());
    }
}

fn names(page: &Value) -> Vec<&str> {
    let items = page["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_list_of_nothing_is_an_empty_list() {
    let cluster = Cluster::of(0).await;
    let list = cluster.client.get(SANDBOXES).await.json();
    assert_eq!(list["kind"], "SandboxList");
    assert_eq!(list["apiVersion"], "agents.x-k8s.io/v1beta1");
    assert_eq!(list["items"], json!([]));
    let elsewhere = "/apis/agents.x-k8s.io/v1beta1/namespaces/nowhere/sandboxes";
    assert_eq!(
        cluster.client.get(elsewhere).await.json()["items"],
        json!([])
    );
    let table = cluster.client.get_as(SANDBOXES, TABLE).await.json();
    assert_eq!(table["rows"], json!([]));
    let metadata = cluster.client.get_as(SANDBOXES, METADATA_LIST).await.json();
    assert_eq!(metadata["items"], json!([]));
}

#[tokio::test]
async fn items_are_whole_objects_no_newer_than_the_list() {
    let cluster = Cluster::of(5).await;
    let list = cluster.client.get(SANDBOXES).await.json();
    let version = |of: &Value| -> u64 {
        let text = of["metadata"]["resourceVersion"].as_str().unwrap();
        assert!(!text.starts_with('0'));
        text.parse().unwrap()
    };
    for item in list["items"].as_array().unwrap() {
        assert_eq!(item["kind"], "Sandbox");
        assert_eq!(item["apiVersion"], "agents.x-k8s.io/v1beta1");
        assert!(version(item) <= version(&list));
        let name = item["metadata"]["name"].as_str().unwrap();
        let got = cluster.client.get(format!("{SANDBOXES}/{name}")).await;
        assert_eq!(&got.json(), item, "a list and a get show the same");
    }
}

#[tokio::test]
async fn twenty_thousand_objects_come_whole_and_in_order() {
    let workshop = Workshop::open().await;
    workshop.put_many(20_000);
    workshop.put_in("another", "z", "red");
    let answer = workshop.client.get(ALL_WIDGETS).await;
    let found = answer.names();
    assert_eq!(found.len(), 20_001);
    assert_eq!(found[0], "z", "namespaces come before names");
    assert!(found[1..].is_sorted());
    assert_eq!(
        answer.json()["metadata"],
        json!({"resourceVersion": workshop.head()})
    );
}

#[tokio::test]
async fn all_pages_of_a_list_show_its_first_version() {
    let workshop = Workshop::open().await;
    workshop.put_many(25);
    let at = workshop.head();
    let first = workshop
        .client
        .get(format!("{WIDGETS}?limit=10"))
        .await
        .json();
    assert_eq!(first["metadata"]["remainingItemCount"], 15);
    // What happens between pages shows in none of them.
    workshop.put("w-00012x", "new");
    workshop.remove("w-00011");
    workshop.put("w-00024", "blue");
    let token = first["metadata"]["continue"].as_str().unwrap();
    let path = format!("{WIDGETS}?limit=10&continue={token}");
    let second = workshop.client.get(&path).await.json();
    assert_eq!(second["metadata"]["remainingItemCount"], 5);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let path = format!("{WIDGETS}?limit=10&continue={token}&resourceVersion=0");
    let third = workshop.client.get(&path).await.json();
    assert_eq!(third["metadata"], json!({"resourceVersion": at}));
    let expected: Vec<_> = (0..25).map(|number| format!("w-{number:05}")).collect();
    let found = [names(&first), names(&second), names(&third)].concat();
    assert_eq!(found, expected);
    for page in [&first, &second] {
        assert_eq!(page["metadata"]["resourceVersion"], json!(at));
    }
    assert_eq!(third["items"][4]["spec"]["color"], "red");
}

#[tokio::test]
async fn a_limit_counts_what_matches() {
    let workshop = Workshop::open().await;
    for number in 0..30 {
        let color = if number % 3 == 0 { "red" } else { "blue" };
        workshop.put(&format!("w-{number:02}"), color);
    }
    let path = format!("{WIDGETS}?limit=4&labelSelector=color%3Dred");
    let pages = pages(&workshop.client, &path).await;
    let sizes: Vec<_> = pages.iter().map(|page| names(page).len()).collect();
    assert_eq!(sizes, [4, 4, 2]);
    for page in &pages {
        assert_eq!(page["metadata"].get("remainingItemCount"), None);
        assert!(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .all(|item| item["spec"]["color"] == "red")
        );
    }
    // A page that shows the last match has no token, whatever comes behind it that does not match.
    let whole = format!("{WIDGETS}?limit=10&labelSelector=color%3Dred");
    let whole = workshop.client.get(&whole).await.json();
    assert_eq!(whole["metadata"].get("continue"), None);
}

#[tokio::test]
async fn a_page_of_all_objects_has_no_token() {
    let workshop = Workshop::open().await;
    workshop.put_many(10);
    let list = workshop
        .client
        .get(format!("{WIDGETS}?limit=10"))
        .await
        .json();
    assert_eq!(
        list["metadata"],
        json!({"resourceVersion": workshop.head()})
    );
}

#[tokio::test]
async fn an_expired_page_says_how_to_go_on_at_the_newest_version() {
    let history = Limits {
        events: 20,
        ..Limits::default()
    };
    let workshop = Workshop::with_history(history).await;
    workshop.put_many(10);
    let first = workshop
        .client
        .get(format!("{WIDGETS}?limit=4"))
        .await
        .json();
    for _ in 0..30 {
        workshop.put("w-00009", "blue");
    }
    let token = first["metadata"]["continue"].as_str().unwrap();
    let path = format!("{WIDGETS}?limit=4&continue={token}");
    let expired = workshop.client.get(&path).await.refusal(410, "Expired");
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let path = format!("{WIDGETS}?limit=4&continue={token}");
    let second = workshop.client.get(&path).await.json();
    assert_eq!(names(&second), ["w-00004", "w-00005", "w-00006", "w-00007"]);
    assert_eq!(
        second["metadata"]["resourceVersion"],
        json!(workshop.head())
    );
    assert_eq!(second["metadata"]["remainingItemCount"], 2);
}

#[tokio::test]
async fn what_comes_to_be_behind_the_last_object_shown_is_not_passed_over() {
    let history = Limits {
        events: 20,
        ..Limits::default()
    };
    let workshop = Workshop::with_history(history).await;
    for (name, color) in [("w-1", "red"), ("w-5", "blue"), ("w-9", "red")] {
        workshop.put(name, color);
    }
    let path = format!("{WIDGETS}?limit=1&labelSelector=color%3Dred");
    let first = workshop.client.get(&path).await.json();
    assert_eq!(names(&first), ["w-1"]);
    // Before one that was looked at and not shown.
    workshop.put("w-3", "red");
    for _ in 0..30 {
        workshop.put("w-5", "blue");
    }
    let token = first["metadata"]["continue"].as_str().unwrap();
    let next = format!("{path}&continue={token}");
    let expired = workshop.client.get(&next).await.refusal(410, "Expired");
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let next = format!("{path}&continue={token}");
    let second = workshop.client.get(&next).await.json();
    assert_eq!(names(&second), ["w-3"]);
}

#[tokio::test]
async fn a_token_leads_nowhere_else() {
    let cluster = Cluster::of(5).await;
    let first = cluster.client.get(format!("{SANDBOXES}?limit=2")).await;
    let token = first.json()["metadata"]["continue"].clone();
    let token = token.as_str().unwrap();
    let other = "/apis/agents.x-k8s.io/v1beta1/namespaces/other/sandboxes";
    let moved = cluster.client.get(format!("{other}?continue={token}"));
    moved.await.refusal(400, "BadRequest");
    let wider = cluster
        .client
        .get(format!("{ALL_SANDBOXES}?continue={token}"));
    wider.await.refusal(400, "BadRequest");
    let forged = cluster.client.get(format!("{SANDBOXES}?continue=forged"));
    let forged = forged.await.refusal(400, "BadRequest");
    assert!(
        forged["message"]
            .as_str()
            .unwrap()
            .contains("invalid continue token")
    );
    let both = format!("{SANDBOXES}?continue={token}&resourceVersion=9");
    cluster.client.get(&both).await.refusal(400, "BadRequest");
    let both = format!("{SANDBOXES}?continue={token}&resourceVersionMatch=Exact");
    cluster.client.get(&both).await.refusal(422, "Invalid");
}

#[tokio::test]
async fn an_exact_version_is_shown_or_refused() {
    let history = Limits {
        events: 10,
        ..Limits::default()
    };
    let workshop = Workshop::with_history(history).await;
    let old = workshop.put("a", "red");
    workshop.put("b", "red");
    let exactly = format!("{WIDGETS}?resourceVersion={old}&resourceVersionMatch=Exact");
    let list = workshop.client.get(&exactly).await;
    assert_eq!(list.names(), ["a"]);
    assert_eq!(list.json()["metadata"]["resourceVersion"], json!(old));
    let legacy = format!("{WIDGETS}?resourceVersion={old}&limit=5");
    assert_eq!(workshop.client.get(&legacy).await.names(), ["a"]);
    for query in ["", "&resourceVersionMatch=NotOlderThan"] {
        let at_least = format!("{WIDGETS}?resourceVersion={old}{query}");
        assert_eq!(workshop.client.get(&at_least).await.names(), ["a", "b"]);
    }
    workshop.put_many(20);
    workshop.client.get(&exactly).await.refusal(410, "Expired");
}

#[tokio::test]
async fn a_version_of_the_future_is_waited_for() {
    let workshop = Workshop::open().await;
    let now: u64 = workshop.put("a", "red").parse().unwrap();
    let next = format!("{WIDGETS}?resourceVersion={}", now + 1);
    let (list, _) = tokio::join!(workshop.client.get(&next), async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        workshop.put("b", "red")
    });
    assert_eq!(list.names(), ["a", "b"]);

    let far = now + 100;
    let paths = [
        format!("{WIDGETS}?resourceVersion={far}"),
        format!("{WIDGETS}?resourceVersion={far}&resourceVersionMatch=Exact"),
        format!("{WIDGETS}/a?resourceVersion={far}"),
    ];
    for refused in join_all(paths.iter().map(|path| workshop.client.get(path))).await {
        let status = refused.refusal(504, "Timeout");
        let current = now + 1;
        assert_eq!(
            status["message"],
            json!(format!(
                "Timeout: Too large resource version: {far}, current: {current}"
            ))
        );
        assert_eq!(
            status["details"],
            json!({
                "causes": [{
                    "reason": "ResourceVersionTooLarge",
                    "message": "Too large resource version",
                }],
                "retryAfterSeconds": 1,
            })
        );
    }
}

#[tokio::test]
async fn options_that_contradict_each_other_are_invalid() {
    let cluster = Cluster::of(1).await;
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion=5&resourceVersionMatch=Newest",
        "sendInitialEvents=true",
    ] {
        let refused = cluster.client.get(format!("{SANDBOXES}?{query}")).await;
        let status = refused.refusal(422, "Invalid");
        assert_eq!(status["details"]["group"], "meta.k8s.io", "{query}");
        assert_eq!(status["details"]["kind"], "ListOptions", "{query}");
    }
    for query in [
        "resourceVersion=x",
        "resourceVersion=-1",
        "resourceVersion=007",
        "limit=ten",
        "timeoutSeconds=ten",
        "timeout=abc",
        "labelSelector=a%3Db%3Dc",
        "labelSelector=a%20in%20(x",
        "fieldSelector=%3D",
        "fieldSelector=spec.nope%3D1",
        "fieldSelector=metadata.name",
    ] {
        let refused = cluster.client.get(format!("{SANDBOXES}?{query}")).await;
        refused.refusal(400, "BadRequest");
    }
    let unknown = cluster
        .client
        .get(format!("{SANDBOXES}?shardSelector=x&more&=&&"));
    assert_eq!(unknown.await.code(), 200, "unknown parameters are ignored");
}

#[tokio::test]
async fn selectors_take_exactly_what_they_say() {
    let workshop = Workshop::open().await;
    workshop.put("a", "red");
    workshop.put("b", "blue");
    workshop.put_in("other", "a", "green");
    let check = async |path: &str, query: &str, expected: &[&str]| {
        let found = workshop.client.get(format!("{path}?{query}")).await;
        assert_eq!(found.names(), expected, "{query}");
    };
    check(WIDGETS, "fieldSelector=metadata.name%3Da", &["a"]).await;
    check(WIDGETS, "fieldSelector=metadata.name%3Dz", &[]).await;
    check(
        ALL_WIDGETS,
        "fieldSelector=metadata.name%3D%3Da",
        &["a", "a"],
    )
    .await;
    check(
        ALL_WIDGETS,
        "fieldSelector=metadata.namespace%3Dother",
        &["a"],
    )
    .await;
    check(
        ALL_WIDGETS,
        "fieldSelector=metadata.namespace!%3Dother,metadata.name!%3Da",
        &["b"],
    )
    .await;
    check(WIDGETS, "fieldSelector=metadata.namespace%3Dother", &[]).await;
    check(WIDGETS, "fieldSelector=spec.color%3Dblue", &["b"]).await;
    check(
        ALL_WIDGETS,
        "labelSelector=color%20in%20(red,green)",
        &["a", "a"],
    )
    .await;
    check(
        ALL_WIDGETS,
        "labelSelector=color%20notin%20(red,green)",
        &["b"],
    )
    .await;
    check(ALL_WIDGETS, "labelSelector=color", &["a", "b", "a"]).await;
    check(ALL_WIDGETS, "labelSelector=!color", &[]).await;
    check(
        ALL_WIDGETS,
        "labelSelector=shape!%3Dround",
        &["a", "b", "a"],
    )
    .await;
}

#[tokio::test]
async fn a_list_of_the_cluster_narrows_to_its_servers_labels() {
    let cluster = Cluster::of(6).await;
    let on = "labelSelector=sandbox.cocoonstack.io/node%3Dsim-0001";
    let by_label = cluster.client.get(format!("{ALL_SANDBOXES}?{on}")).await;
    let on = "fieldSelector=status.nodeName%3Dsim-0001";
    let by_field = cluster.client.get(format!("{ALL_SANDBOXES}?{on}")).await;
    assert_eq!(by_label.names(), ["sb-000001", "sb-000004"]);
    assert_eq!(by_field.names(), by_label.names());
}
