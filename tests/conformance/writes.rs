//! What the checks of writes share.

use std::time::Duration;

use serde_json::{Value, json};

use super::{client::Client, subject::Subject};
use crate::{
    caller::{Answer, Caller},
    users::ADMIN,
};

/// Within which others act on what was written.
pub(super) const SOON: Duration = Duration::from_secs(30);
/// A finalizer that nobody takes away but the check itself.
pub(super) const HOLD: &str = "example.org/hold";
/// A uid that no object has.
pub(super) const OTHER_UID: &str = "6e3b2cc1-2a36-4f0d-8a5e-8f0ad6a0a4a1";

/// A Sandbox with changes, as a merge patch makes them.
pub(super) fn with(subject: &Subject, name: &str, change: &Value) -> Value {
    let mut object = subject.mk(name);
    json_patch::merge(&mut object, change);
    object
}

/// A Sandbox that stays when it is deleted, until its finalizer is taken away.
pub(super) fn held(subject: &Subject, name: &str) -> Value {
    with(subject, name, &json!({"metadata": {"finalizers": [HOLD]}}))
}

/// Only the metadata of a change.
pub(super) fn labelled(key: &str, value: &str) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

/// The answer of a call that claims. Waits for a warm VM, as clients do.
pub(super) async fn warm(call: impl AsyncFn() -> Answer) -> Answer {
    loop {
        let answer = call().await;
        if answer.causes() != ["NoWarmCapacity"] {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The answer to a create.
pub(super) async fn post(client: &Client, path: &str, object: &Value) -> Answer {
    warm(async || client.post(path, object).await).await
}

/// An apply by a manager, with what else the query says.
pub(super) async fn apply(client: &Client, path: &str, query: &str, config: &Value) -> Answer {
    let path = format!("{path}?{query}");
    warm(async || client.patch(super::client::APPLY, &path, config).await).await
}

/// The warnings of an answer.
pub(super) fn warnings(answer: &Answer) -> Vec<&str> {
    let values = answer.headers.get_all("warning").iter();
    values.filter_map(|value| value.to_str().ok()).collect()
}

/// The fields at fault.
pub(super) fn fields(answer: &Answer) -> Vec<&str> {
    let causes = answer.body["details"]["causes"].as_array();
    let causes = causes.into_iter().flatten();
    causes.filter_map(|cause| cause["field"].as_str()).collect()
}

/// What the answer says in words.
pub(super) fn message(answer: &Answer) -> &str {
    answer.body["message"].as_str().unwrap_or_default()
}

pub(super) fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
}

/// The names of a list's objects.
pub(super) fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().into_iter().flatten();
    items
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect()
}

/// The administrator of the cluster, whoever serves sandboxes.
pub(super) fn cluster(subject: &Subject) -> Caller {
    Caller::new(subject.control_plane.config_as(ADMIN))
}
