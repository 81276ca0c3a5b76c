//! Registers a server that runs in a test with the control plane's aggregation layer.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{Request, header::ACCEPT};
use kube::client::Body;
use serde_json::{Value, json};

use crate::{caller::Caller, control_plane::ControlPlane, stage::eventually};

/// The group that is registered.
pub(crate) const GROUP: &str = "agents.x-k8s.io";

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Namespace and name of the Service, as in `apiservice/`.
pub(crate) const NAMESPACE: &str = "sandbox-system";
const NAME: &str = "sandbox-apiserver";

/// The name that kube-apiserver expects in the serving certificate, whatever address it dials.
pub(crate) const SERVER_NAME: &str = "sandbox-apiserver.sandbox-system.svc";

/// The registration, which is taken back when this is dropped.
///
/// An APIService whose server is gone is an outage for everybody: it holds up the deletion of every namespace. So it
/// must not outlive the test.
pub(crate) struct Registration<'a> {
    control_plane: &'a ControlPlane,
    names: Vec<String>,
    _turn: Option<Turn<'a>>,
}

/// A server on this machine that kube-apiserver proxies a group to.
pub(crate) struct Backend<'a> {
    pub(crate) group: &'a str,
    /// Of its Service.
    pub(crate) name: &'a str,
    pub(crate) port: u16,
    /// PEM.
    pub(crate) ca_bundle: &'a str,
}

/// The right to register, which one test has at a time.
pub(crate) type Turn<'a> = tokio::sync::MutexGuard<'a, ()>;

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let names = self.names.iter().map(|name| format!("apiservice/{name}"));
        let objects: Vec<String> = names.chain([format!("service/{NAME}")]).collect();
        let mut args = vec!["delete", "--ignore-not-found", "--namespace", NAMESPACE];
        args.extend(objects.iter().map(String::as_str));
        // Blocking, since a destructor cannot wait otherwise. kube-apiserver does not ask the registered server about it.
        if let Err(error) = self.control_plane.kubectl().run_blocking(&args) {
            eprintln!("the registration stays: {error}");
        }
    }
}

impl ControlPlane {
    /// Makes kube-apiserver proxy the given versions of [`GROUP`], preferred first, to `localhost:port`, and returns when
    /// all are Available. `ca_bundle` is PEM.
    ///
    /// The names are one for the whole cluster, so tests take turns: a second call waits until the first registration
    /// is dropped.
    ///
    /// # Panics
    /// When kube-apiserver does not find the server available within a minute.
    pub(crate) async fn register_api_service(
        &self,
        versions: &[&str],
        port: u16,
        ca_bundle: &str,
    ) -> Registration<'_> {
        let turn = self.api_service.lock().await;
        let mut registration = self
            .register_in_turn(&turn, versions, port, ca_bundle)
            .await;
        registration._turn = Some(turn);
        registration
    }

    /// A registration that somebody else makes, to be taken back when this is dropped.
    pub(crate) fn registered(&self, versions: &[&str]) -> Registration<'_> {
        let names = versions.iter();
        Registration {
            _turn: None,
            control_plane: self,
            names: names.map(|version| format!("{version}.{GROUP}")).collect(),
        }
    }

    /// As [`Self::register_api_service`], for who has waited for its turn before and keeps it for longer.
    pub(crate) async fn register_in_turn<'a>(
        &'a self,
        _turn: &Turn<'a>,
        versions: &[&str],
        port: u16,
        ca_bundle: &str,
    ) -> Registration<'a> {
        let registration = self.registered(versions);
        let backend = Backend {
            group: GROUP,
            name: NAME,
            port,
            ca_bundle,
        };
        let mut items = vec![namespace(), backend.service()];
        let versions = versions.iter().zip((1..=100).rev());
        items.extend(versions.map(|(version, priority)| backend.api_service(version, priority)));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let apply = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--filename=-",
        ];
        let kubectl = self.kubectl();
        kubectl.stdout_with_input(&apply, &list.to_string()).await;

        let mut args = vec![
            "wait",
            "--for=condition=Available",
            "--timeout=60s",
            "apiservice",
        ];
        args.extend(registration.names.iter().map(String::as_str));
        kubectl.stdout(&args).await;
        registration
    }
}

/// Waits until kube-apiserver tells what the server serves, as kubectl and the clients in Go ask for it. It asks the server once that
/// is available, and once a minute; and when it is refused, as by one that is starting, again after ever longer pauses.
pub(crate) async fn is_discovered(admin: &Caller) {
    eventually(
        Duration::from_secs(70),
        "the group is discovered",
        async || {
            let request = Request::get("/apis").header(ACCEPT, AGGREGATED);
            let request = request.body(Body::empty());
            let listed = admin.send(request.expect("it is well-formed")).await.body;
            let groups = listed["items"].as_array().into_iter().flatten();
            let versions = groups
                .filter(|group| group["metadata"]["name"] == GROUP)
                .filter_map(|group| group["versions"].as_array());
            let mut versions = versions.flatten().peekable();
            let is_whole = |version: &Value| {
                let resources = version["resources"].as_array();
                version["freshness"] == "Current" && resources.is_some_and(|it| !it.is_empty())
            };
            versions.peek().is_some() && versions.all(is_whole)
        },
    )
    .await;
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
}

impl Backend<'_> {
    /// Without kube-proxy no cluster IP leads anywhere; kube-apiserver resolves an ExternalName by itself.
    pub(crate) fn service(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {
                "type": "ExternalName",
                "externalName": "localhost",
                "ports": [{"name": "https", "port": self.port}],
            },
        })
    }

    pub(crate) fn api_service(&self, version: &str, priority: i32) -> Value {
        let Self { group, name, .. } = self;
        json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {
                "group": group,
                "version": version,
                "groupPriorityMinimum": 1000,
                "versionPriority": priority,
                "service": {"name": name, "namespace": NAMESPACE, "port": self.port},
                "caBundle": BASE64_STANDARD.encode(self.ca_bundle),
            },
        })
    }
}
