//! Watches of the objects that a controller works on.

use std::{fmt::Debug, time::Duration};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        reflector::{self, Store},
        watcher::{self, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::telemetry::Readiness;

/// Time between two looks whether the server is ready.
const READY_POLL: Duration = Duration::from_millis(50);

/// What a watch tells, after its store knows it.
pub type Events<K> = BoxStream<'static, Result<watcher::Event<K>, watcher::Error>>;

/// Waits until the server serves: before, the index does not know everything.
pub async fn until_served(readiness: &Readiness) {
    while !readiness.serves() {
        sleep(READY_POLL).await;
    }
}

/// The objects of a kind, and their changes. `slim` takes out what nobody reads; managed fields are taken out anyway.
///
/// The watch goes on after an error by itself, and the log has the error; `controller` is for the log.
pub fn follow<K>(api: Api<K>, controller: &'static str, slim: fn(&mut K)) -> (Store<K>, Events<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let objects = watcher(api, watcher::Config::default()).modify(move |object| {
        object.managed_fields_mut().clear();
        slim(object);
    });
    let events = objects
        .default_backoff()
        .reflect(writer)
        .inspect_err(move |error| {
            tracing::warn!(controller, kind = %K::kind(&()), error = error as &dyn std::error::Error, "watching");
        });
    (store, events.boxed())
}
