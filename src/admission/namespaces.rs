//! Whether a namespace takes new objects.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::RwLock;

use crate::telemetry::{Check, Tasks};

use super::{
    Denied,
    known::{Known, Phase},
};

/// How long a namespace that the watch has not told of yet is waited for: `kubectl create namespace` and a create right after
/// it are faster than the watch.
const PATIENCE: Duration = Duration::from_millis(50);

/// Time for the live read after that.
const DEADLINE: Duration = Duration::from_secs(5);

/// The namespaces of the cluster. A clone is the same set.
#[derive(Clone, Debug)]
pub struct Namespaces(Source);

#[derive(Clone, Debug)]
enum Source {
    Live(Arc<Live>),
    Every,
}

struct Live {
    api: Api<Namespace>,
    // Held for a lookup or for one event, never over an await.
    known: RwLock<Known>,
}

impl Namespaces {
    /// Follows the cluster's namespaces in a task of `tasks`. `check` passes with the first complete list.
    ///
    /// Needs `get`, `list` and `watch` on namespaces.
    pub fn follow(client: Client, tasks: &mut Tasks, check: Check) -> Self {
        let live = Arc::new(Live {
            api: Api::all(client.clone()),
            known: RwLock::default(),
        });
        tasks.spawn("namespaces", live.clone().watch(Api::all(client), check));
        Self(Source::Live(live))
    }

    /// Every namespace exists. For a server without a cluster.
    pub fn every() -> Self {
        Self(Source::Every)
    }

    /// Whether something may be created in `namespace`. Answers at once for a namespace that is known, in at most 5 s for one
    /// that is not.
    ///
    /// For creates alone: in a namespace that is being deleted, updates and deletes are what lets it end.
    ///
    /// # Errors
    /// [`Denied`]. Without an answer of kube-apiserver nothing is created.
    pub async fn check(&self, namespace: &str) -> Result<(), Denied> {
        let Source::Live(live) = &self.0 else {
            return Ok(());
        };
        let phase = match live.phase(namespace) {
            Some(phase) => phase,
            None => live.phase_of_unknown(namespace).await?,
        };
        match phase {
            Phase::Active => Ok(()),
            Phase::Terminating => Err(Denied::Terminating(namespace.to_owned())),
        }
    }
}

impl Live {
    /// Takes in what changes, without the objects' specs.
    async fn watch(self: Arc<Self>, api: Api<PartialObjectMeta<Namespace>>, check: Check) {
        let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    let complete = self.known.write().apply(event);
                    if complete {
                        check.pass();
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "watching namespaces"
                    );
                }
            }
        }
    }

    fn phase(&self, namespace: &str) -> Option<Phase> {
        self.known.read().phase(namespace)
    }

    async fn phase_of_unknown(&self, namespace: &str) -> Result<Phase, Denied> {
        tokio::time::sleep(PATIENCE).await;
        if let Some(phase) = self.phase(namespace) {
            return Ok(phase);
        }
        let read = tokio::time::timeout(DEADLINE, self.api.get_metadata_opt(namespace));
        let namespace = || namespace.to_owned();
        let found = read
            .await
            .map_err(|_| Denied::Silent {
                namespace: namespace(),
                after: DEADLINE,
            })?
            .map_err(|source| Denied::Unknown {
                namespace: namespace(),
                source,
            })?
            .ok_or_else(|| Denied::NotFound(namespace()))?;
        Ok(match found.metadata.deletion_timestamp {
            None => Phase::Active,
            Some(_) => Phase::Terminating,
        })
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Readiness;
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn without_an_answer_nothing_is_created() {
        // A port that nobody listens on.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let (mut tasks, readiness) = (Tasks::new(CancellationToken::new()), Readiness::new());
        let check = readiness.check("namespaces");
        let namespaces = Namespaces::follow(client, &mut tasks, check);
        let denied = namespaces.check("default").await;
        assert!(matches!(denied, Err(Denied::Unknown { .. })), "{denied:?}");
        assert!(!readiness.is_ready());
    }

    #[tokio::test]
    async fn without_a_cluster_every_namespace_exists() {
        assert!(Namespaces::every().check("any").await.is_ok());
    }
}
