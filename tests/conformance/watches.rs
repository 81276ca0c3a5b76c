//! WATCH.

use std::time::Duration;

use super::subject::Subject;

items! {
    c_118 P0 "Events are JSON objects, a line each, of the five known types.";
    c_129 P0 "`timeoutSeconds` ends the stream in order, and no stream ends within a second without an event.";
}

async fn c_118(subject: &Subject) {
    subject.create("a").await;
    for client in subject.both_ways() {
        let mut watch = client
            .watch(&format!("{}?watch=true", subject.collection()))
            .await;
        assert_eq!(watch.headers()["content-type"], "application/json");
        let event = watch.event().await;
        assert_eq!(event["type"], "ADDED");
        assert_eq!(event["object"]["metadata"]["name"], "a");
        assert_eq!(event["object"]["kind"], "Sandbox");
    }
}

async fn c_129(subject: &Subject) {
    let query = "watch=true&timeoutSeconds=2";
    let mut watch = subject
        .proxied()
        .watch(&format!("{}?{query}", subject.collection()))
        .await;
    assert!(watch.is_silent(Duration::from_secs(1)).await);
    assert!(watch.ends(Duration::from_secs(5)).await);
}
