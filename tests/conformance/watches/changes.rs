//! Changes: each once, in order, as the watcher's selection and version see it.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

use super::STREAMED_LIST;
use crate::conformance::{
    client::Events,
    shown::{name, said, version},
    subject::Subject,
};

const QUIET: Duration = Duration::from_millis(500);

/// Events up to the one that says this, that one last.
async fn until(watch: &mut Events, last: &str) -> Vec<Value> {
    let mut events = Vec::new();
    loop {
        let event = watch.event().await;
        let is_last = said(&event) == last;
        events.push(event);
        if is_last {
            return events;
        }
    }
}

pub(super) async fn c_118(subject: &Subject) {
    let all = subject.collection();
    for (client, name) in subject.both_ways().into_iter().zip(["a", "b"]) {
        subject.create(name).await;
        let mut watch = client.watch(&format!("{all}?{STREAMED_LIST}")).await;
        assert_eq!(watch.headers()["content-type"], "application/json");
        let mut events = watch.initial().await;
        subject.label(name, "colour", "red").await;
        subject.proxied().delete(&subject.item(name)).await.ok();
        events.extend(until(&mut watch, &format!("DELETED {name}")).await);
        let too_old = format!("{all}?watch=true&resourceVersion=1");
        events.push(client.watch(&too_old).await.event().await);
        for event in &events {
            let fields: BTreeSet<&str> = event.as_object().unwrap().keys().map(|k| &**k).collect();
            assert_eq!(fields, ["object", "type"].into());
            let of = if event["type"] == "ERROR" {
                "Status"
            } else {
                "Sandbox"
            };
            assert_eq!(event["object"]["kind"], of);
        }
        let types: BTreeSet<_> = events.iter().filter_map(|e| e["type"].as_str()).collect();
        let five = ["ADDED", "BOOKMARK", "DELETED", "ERROR", "MODIFIED"];
        assert_eq!(types, five.into());

        subject.create(&format!("{name}-again")).await;
        let path = format!("{all}?watch=true&timeoutSeconds=1");
        let whole = client.get(&path).await;
        assert_eq!(whole.status, 200);
        let text = std::str::from_utf8(&whole.bytes).unwrap();
        let lines: Vec<_> = text.split_terminator('\n').collect();
        assert!(text.ends_with('\n') && !lines.is_empty(), "{text}");
        for line in lines {
            let event: Value = serde_json::from_str(line).unwrap();
            assert_eq!(event["type"], "ADDED");
        }
    }
}

pub(super) async fn c_119(subject: &Subject) {
    let (client, all) = (subject.proxied(), subject.collection());
    let before = subject.create("a").await;
    let red = subject.label("a", "colour", "red").await;
    let blue = subject.label("a", "colour", "blue").await;
    let other = subject.create("b").await;
    client.delete(&subject.item("a")).await.ok();
    let again = subject.create("a").await;
    let written = [
        ("MODIFIED a", version(&red)),
        ("MODIFIED a", version(&blue)),
        ("ADDED b", version(&other)),
        ("ADDED a", version(&again)),
    ];
    for client in subject.both_ways() {
        for (skipped, from) in [(0, version(&before)), (2, version(&blue))] {
            let path = format!("{all}?watch=true&resourceVersion={from}");
            let mut watch = client.watch(&path).await;
            let events = until(&mut watch, "ADDED a").await;
            assert!(watch.is_silent(QUIET).await, "each once");
            let versions: Vec<u64> = events.iter().map(|e| version(&e["object"])).collect();
            assert!(versions.is_sorted_by(|a, b| a < b) && versions[0] > from);
            let seen: Vec<_> = events.iter().map(said).zip(versions).collect();
            for (what, at) in written.iter().skip(skipped) {
                let expected = (what.to_string(), *at);
                assert!(seen.contains(&expected), "{expected:?} is not in {seen:?}");
            }
            let deleted: Vec<_> = events.iter().filter(|e| e["type"] == "DELETED").collect();
            assert_eq!(deleted.len(), 1);
            let last = &deleted[0]["object"];
            assert_eq!(last["metadata"]["labels"]["colour"], "blue");
            assert_eq!(last["metadata"]["uid"], before["metadata"]["uid"]);
            assert!(version(&other) < version(last) && version(last) < version(&again));
        }
    }
}

pub(super) async fn c_120(subject: &Subject) {
    let all = subject.collection();
    let from = version(&subject.create("a").await);
    subject.create("b").await;
    let mut written = Vec::new();
    for colour in ["red", "red", "blue", "red"] {
        // Something else changes too, so that a repeated colour is a change.
        let n_written = written.len().to_string();
        subject.label("a", "n", &n_written).await;
        written.push((subject.label("a", "colour", colour).await, n_written));
    }
    for client in subject.both_ways() {
        let selector = "labelSelector=colour%3Dred";
        let path = format!("{all}?watch=true&resourceVersion={from}&{selector}");
        let mut watch = client.watch(&path).await;
        let first = watch.event().await;
        assert_eq!(said(&first), "ADDED a");
        assert_eq!(version(&first["object"]), version(&written[0].0));
        let events = until(&mut watch, "DELETED a").await;
        let (left, changed) = events.split_last().unwrap();
        assert!(!changed.is_empty() && changed.iter().all(|e| e["type"] == "MODIFIED"));
        // What it was before, with the version of the change.
        assert_eq!(left["object"]["metadata"]["labels"]["colour"], "red");
        assert_eq!(left["object"]["metadata"]["labels"]["n"], written[2].1);
        assert_eq!(version(&left["object"]), version(&written[2].0));
        let back = watch.event().await;
        assert_eq!(said(&back), "ADDED a");
        assert_eq!(version(&back["object"]), version(&written[3].0));
        assert!(watch.is_silent(QUIET).await, "nothing of others");
    }
}

pub(super) async fn c_121(subject: &Subject) {
    let all = subject.collection();
    subject.create("a").await;
    let mut names = vec!["a".to_owned()];
    for (client, way) in subject.both_ways().into_iter().zip(["p", "d"]) {
        for (n, from) in ["", "&resourceVersion=", "&resourceVersion=0"]
            .into_iter()
            .enumerate()
        {
            let newest = client.get(&all).await.ok();
            let mut watch = client.watch(&format!("{all}?watch=true{from}")).await;
            let mut found = BTreeSet::new();
            for _ in &names {
                let event = watch.event().await;
                assert_eq!(event["type"], "ADDED", "{from:?}");
                found.insert(name(&event["object"]).to_owned());
            }
            assert_eq!(found, names.iter().cloned().collect(), "{from:?}");
            let path = format!("{all}?watch=true&resourceVersion={}", version(&newest));
            let mut later = client.watch(&path).await;
            assert!(later.is_silent(QUIET).await, "nothing that was there");
            let added = format!("{way}{n}");
            subject.create(&added).await;
            for watch in [&mut watch, &mut later] {
                assert_eq!(said(&watch.event().await), format!("ADDED {added}"));
            }
            names.push(added);
        }
    }
}

pub(super) async fn c_134(subject: &Subject) {
    let all = subject.collection();
    let from = version(&subject.create("a").await);
    let old = all.replace("/v1beta1/", "/v1alpha1/");
    for (client, other) in subject.both_ways().into_iter().zip(["b", "c"]) {
        subject.label("a", "seen-by", other).await;
        subject.create(other).await;
        subject.proxied().delete(&subject.item(other)).await.ok();
        let mut seen = Vec::new();
        for (path, api_version, mode) in [
            (&all, "agents.x-k8s.io/v1beta1", "operatingMode"),
            (&old, "agents.x-k8s.io/v1alpha1", "replicas"),
        ] {
            let path = format!("{path}?watch=true&resourceVersion={from}");
            let mut watch = client.watch(&path).await;
            let events = until(&mut watch, &format!("DELETED {other}")).await;
            for event in &events {
                let object = &event["object"];
                assert_eq!(object["apiVersion"], api_version);
                assert!(object["spec"].get(mode).is_some(), "{object:#}");
            }
            let what = |event: &Value| (said(event), version(&event["object"]));
            seen.push(events.iter().map(what).collect::<Vec<_>>());
        }
        assert_eq!(seen[0], seen[1]);
        assert!(seen[0].len() >= 3, "{seen:?}");

        let streamed = format!("{old}?{STREAMED_LIST}");
        let events = client.watch(&streamed).await.initial().await;
        let bookmark = &events.last().unwrap()["object"];
        assert_eq!(
            (&bookmark["kind"], &bookmark["apiVersion"]),
            (&json!("Sandbox"), &json!("agents.x-k8s.io/v1alpha1"))
        );
    }
}
