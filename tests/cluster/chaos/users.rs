//! Users: each call is made, and what came of it written down.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Request;
use jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};

use super::record::{Answered, Call, Record, Verb};
use crate::{
    caller::Caller,
    stage::{TEMPLATE, collection, item, sandbox},
};

/// Longer than the server tries anything.
const PATIENCE: Duration = Duration::from_secs(25);

/// A user of one namespace, who has connections of its own. A clone is the same user.
#[derive(Clone)]
pub(super) struct User {
    pub(super) caller: Caller,
    pub(super) namespace: String,
    pub(super) record: Arc<Mutex<Record>>,
}

impl User {
    /// Makes the call, and leaves after `patience`.
    pub(super) async fn call(&self, verb: Verb, name: &str, patience: Option<Duration>) -> Call {
        let began = Timestamp::now();
        let asked = self.caller.try_send(self.request(&verb, name));
        let answer = tokio::time::timeout(patience.unwrap_or(PATIENCE), asked).await;
        let answer = answer.ok().and_then(Result::ok);
        let call = Call {
            verb,
            name: name.to_owned(),
            began,
            ended: Timestamp::now(),
            answer: answer.map(|answer| Answered {
                status: answer.status.as_u16(),
                is_warned: answer.headers.contains_key("warning"),
                body: answer.body,
            }),
        };
        self.record.lock().unwrap().calls.push(call.clone());
        call
    }

    fn request(&self, verb: &Verb, name: &str) -> Request<Body> {
        let (all, one) = (collection(&self.namespace), item(&self.namespace, name));
        let (method, path, body) = match verb {
            Verb::Create => ("POST", all, sandbox(name, TEMPLATE)),
            Verb::Generate => {
                let mut wanted = sandbox("", TEMPLATE);
                wanted["metadata"] = json!({"generateName": name});
                ("POST", all, wanted)
            }
            Verb::Delete(None) => ("DELETE", one, Value::Null),
            Verb::Delete(Some(uid)) => ("DELETE", one, json!({"preconditions": {"uid": uid}})),
            Verb::Pause => ("POST", format!("{one}/pause"), json!({})),
            Verb::Resume => ("POST", format!("{one}/resume"), json!({})),
            Verb::Fork => ("POST", format!("{one}/fork"), json!({"count": 1})),
            Verb::Label(colour) => {
                let labels = json!({"metadata": {"labels": {"colour": colour}}});
                ("PATCH", one, labels)
            }
            Verb::List => ("GET", all, Value::Null),
        };
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", kind).body(Body::from(body));
        request.unwrap()
    }

    /// The uid of the object that was acknowledged last, or first, under the name.
    pub(super) fn known_uid(&self, name: &str, first: bool) -> Option<String> {
        let record = self.record.lock().unwrap();
        let mut uids = record.acknowledged().filter(|(call, _)| call.name == name);
        let known = match first {
            true => uids.next(),
            false => uids.last(),
        };
        known.map(|(_, object)| object.uid)
    }
}
