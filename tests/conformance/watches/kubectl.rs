//! Watches as kubectl prints them.

use std::time::Duration;

use serde_json::json;

use crate::{
    conformance::{client::TABLE, shown::version, subject::Subject},
    kubectl::Kubectl,
};

/// For how long kubectl watches, and the time between two changes. It prints when it ends.
const WATCHED_FOR: &str = "--request-timeout=5s";
const BETWEEN: Duration = Duration::from_millis(200);

/// What `kubectl get -w` prints of an object with a label that counts its changes: type, name, count.
async fn printed(kubectl: &Kubectl, what: &[&str], namespace: &str) -> Vec<[String; 3]> {
    let how = [
        "--watch",
        "--output-watch-events",
        "--label-columns=count",
        WATCHED_FOR,
        "--namespace",
        namespace,
    ];
    let args = [&["get"], what, &how].concat();
    // Its time being over, it says that it failed.
    let output = kubectl.run(&args).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines().map(|line| {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        assert!(words.len() > 2, "{text}");
        [
            words[0].clone(),
            words[1].clone(),
            words[words.len() - 1].clone(),
        ]
    });
    let head = lines.next();
    assert_eq!(head, Some(["EVENT", "NAME", "COUNT"].map(str::to_owned)));
    lines.collect()
}

/// Asserts that the rows show every count once from the first that they show as a change.
#[track_caller]
fn miss_nothing(rows: &[[String; 3]]) {
    assert_eq!(rows[0][..2], ["ADDED", "a"], "{rows:?}");
    let changes: Vec<_> = rows.iter().filter(|row| row[1] == "a").skip(1).collect();
    assert!(changes.len() > 2, "{rows:?}");
    let counts: Vec<u32> = changes.iter().map(|row| row[2].parse().unwrap()).collect();
    let mut counted = counts.clone();
    counted.dedup();
    let expected: Vec<u32> = (counts[0]..).take(counted.len()).collect();
    assert_eq!(counted, expected);
    assert!(changes.iter().all(|row| row[0] == "MODIFIED"), "{rows:?}");
}

pub(super) async fn c_131(subject: &Subject) {
    let all = subject.collection();
    subject.create("a").await;
    subject.create("b").await;
    subject.label("b", "count", "0").await;
    let labelled = subject.label("a", "count", "0").await;

    // What kubectl asks for: one object, of whose initial event it knows; a list, from its version on.
    for client in subject.both_ways() {
        let accept = [("accept", TABLE)];
        let one = "watch=true&resourceVersion=0&fieldSelector=metadata.name%3Da";
        let mut watch = client.watch_with(&format!("{all}?{one}"), &accept).await;
        let event = watch.event().await;
        assert_eq!(
            (&event["type"], &event["object"]["kind"]),
            (&json!("ADDED"), &json!("Table"))
        );
        let rows = event["object"]["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0]["object"]["metadata"]["name"], "a");
        assert!(watch.is_silent(Duration::from_millis(300)).await);
        let list = client.get_as(&all, TABLE).await.ok();
        assert_eq!(list["rows"].as_array().map(Vec::len), Some(2));
        assert!(version(&list) >= version(&labelled));
    }

    let plural = subject.translated("sandboxes");
    let (kubectl, namespace) = (subject.kubectl(), &subject.namespace);
    let args = ["get", &plural, "--namespace", namespace];
    // Fills its cache too, so that it watches soon.
    kubectl.stdout(&args).await;
    let (single, whole) = ([&*plural, "a"], [&*plural]);
    let both = async {
        tokio::join!(
            printed(&kubectl, &single, namespace),
            printed(&kubectl, &whole, namespace)
        )
    };
    let changes = async {
        for count in 1.. {
            subject.label("a", "count", &count.to_string()).await;
            tokio::time::sleep(BETWEEN).await;
        }
    };
    let (one, list) = tokio::select! {
        rows = both => rows,
        () = changes => unreachable!("there is always another change"),
    };
    miss_nothing(&one);
    assert!(one.iter().all(|row| row[1] == "a"), "{one:?}");
    miss_nothing(&list);
    let others: Vec<_> = list.iter().filter(|row| row[1] == "b").collect();
    assert_eq!(others, [&["ADDED", "b", "0"].map(str::to_owned)]);
}
