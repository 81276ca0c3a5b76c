//! A watcher of a namespace, from a list on, as long as the server lives.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use http::Request;
use kube::client::Body;
use serde_json::Value;

use super::{
    property::{Property, Verdict},
    record::{Object, Outcome, version},
};
use crate::{caller::Caller, stage::collection};

/// What a watcher knows.
#[derive(Debug, Default)]
pub(super) struct View {
    /// By name, with the version.
    objects: BTreeMap<String, (String, u64)>,
    version: u64,
    /// Whether its events still come.
    is_live: bool,
    broken: Option<String>,
}

/// What a watcher knows, while it goes on.
pub(super) type Shared = Arc<Mutex<View>>;

/// Lists, and follows the changes until the stream ends or breaks off.
pub(super) async fn watch(caller: Caller, namespace: String, view: Shared) {
    let path = collection(&namespace);
    let Some(list) = caller.try_get(&path).await.filter(|it| it.status == 200) else {
        return;
    };
    let since = version(&list.body).unwrap_or_default();
    {
        let mut view = view.lock().unwrap();
        let items = list.body["items"].as_array().into_iter().flatten();
        for object in items.map(Object::of) {
            view.objects
                .insert(object.name, (object.uid, object.version));
        }
        view.version = since;
    }
    let request = format!("{path}?watch=1&resourceVersion={since}");
    let request = Request::get(request).body(Body::empty()).unwrap();
    let Ok((status, mut events)) = caller.try_stream(request).await else {
        return;
    };
    if status != 200 {
        return;
    }
    view.lock().unwrap().is_live = true;
    while let Ok(Some(event)) = events.try_next().await {
        let mut view = view.lock().unwrap();
        if event["type"] == "ERROR" {
            break;
        }
        if let Err(what) = view.take(&event) {
            view.broken.get_or_insert(what);
        }
    }
    view.lock().unwrap().is_live = false;
}

impl View {
    fn take(&mut self, event: &Value) -> Result<(), String> {
        let kind = event["type"].as_str().unwrap_or_default();
        let object = Object::of(&event["object"]);
        let known = self.objects.get(&object.name);
        let uid = known.map(|(uid, _)| uid.as_str());
        let follows = match kind {
            "ADDED" => uid.is_none(),
            _ => uid == Some(object.uid.as_str()),
        };
        let message = format!("{kind} {object:?}, known at {}: {known:?}", self.version);
        let rises = object.version > self.version;
        self.version = object.version;
        match kind {
            "DELETED" => self.objects.remove(&object.name),
            _ => self
                .objects
                .insert(object.name, (object.uid, object.version)),
        };
        match follows && rises {
            true => Ok(()),
            false => Err(message),
        }
    }

    /// Whether all it was told follows from each other.
    pub(super) fn check(&self) -> Verdict {
        match &self.broken {
            Some(what) => Property::WatchHistory.broken(what),
            None => Ok(()),
        }
    }

    /// Whether it knows what is listed, if it goes on.
    pub(super) fn check_end(&self, outcome: &Outcome) -> Verdict {
        let listed = outcome.listed.iter();
        let listed = listed.map(|it| (it.name.clone(), (it.uid.clone(), it.version)));
        let listed: BTreeMap<_, _> = listed.collect();
        let what = || format!("it knows {:#?}\nbut there is {listed:#?}", self.objects);
        Property::WatchHistory.demand(!self.is_live || self.objects == listed, what)
    }
}
