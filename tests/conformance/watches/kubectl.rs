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

/// Asserts that the rows show `a` once as it was found, then every change of it once, and returns the counts of the first two.
#[track_caller]
fn miss_nothing(rows: &[[String; 3]]) -> [u32; 2] {
    let of_a: Vec<_> = rows.iter().filter(|row| row[1] == "a").collect();
    assert!(of_a.len() > 3, "{rows:?}");
    assert_eq!(of_a[0][0], "ADDED", "{rows:?}");
    assert!(of_a[1..].iter().all(|row| row[0] == "MODIFIED"), "{rows:?}");
    let counts: Vec<u32> = of_a.iter().map(|row| row[2].parse().unwrap()).collect();
    let expected: Vec<u32> = (counts[1]..).take(counts.len() - 1).collect();
    assert_eq!(counts[1..], expected, "{rows:?}");
    [counts[0], counts[1]]
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
    // kubectl itself drops the state that its watch of one object begins with, and what changed since it had asked for it.
    let [found, changed] = miss_nothing(&one);
    assert!(found < changed, "{one:?}");
    assert!(one.iter().all(|row| row[1] == "a"), "{one:?}");
    let [found, changed] = miss_nothing(&list);
    assert_eq!(found + 1, changed, "{list:?}");
    let others: Vec<_> = list.iter().filter(|row| row[1] == "b").collect();
    assert_eq!(others, [&["ADDED", "b", "0"].map(str::to_owned)]);
}
