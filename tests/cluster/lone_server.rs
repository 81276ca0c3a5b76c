//! What the chart installs, in the cluster that tests share, and the server alone of it: a process with the flags of the
//! Deployment, without nodes.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{path::Path, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    api_service::{self, NAMESPACE, Registration, Turn},
    caller::Caller,
    chart::{args_of, documents, helm_template},
    components::free_port,
    control_plane::{self, ControlPlane},
    installation::led_here,
    process::{Directory, Process},
    stage::{SERVICE_ACCOUNT, eventually, forget_nodes, start_binary},
    users::ADMIN,
};

/// The Secret and the ConfigMap of the server's own CA.
pub(crate) const CA: &str = "sandbox-apiserver-ca";
pub(crate) const API_SERVICE_NAME: &str = "v1beta1.agents.x-k8s.io";
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
/// Generous, since other builds may share the machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// What the chart installed, and the server. All of it ends when it is dropped.
pub(crate) struct LoneServer {
    pub(crate) control_plane: &'static ControlPlane,
    pub(crate) port: u16,
    manifests: String,
    flags: Vec<String>,
    // Dropped in order: the registration goes before its server, and the turn when all is gone.
    _registration: Registration<'static>,
    serve: Option<Process>,
    directory: Directory,
    _turn: Turn<'static>,
}

impl Drop for LoneServer {
    fn drop(&mut self) {
        if let (true, Some(serve)) = (std::thread::panicking(), &self.serve) {
            eprintln!("{}", serve.log_tail(60));
        }
    }
}

impl LoneServer {
    /// Applies what the chart renders with these flags of helm, as `kubectl apply` does, into a cluster without a CA of an
    /// earlier installation. The server is not started.
    pub(crate) async fn new(flags: &[&str]) -> Self {
        let control_plane = control_plane::shared().forever();
        let turn = control_plane.api_service.lock().await;
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        control_plane.apply_crds(&root.join("crds")).await;
        let kubectl = control_plane.kubectl();
        let namespaces = root.join("apiservice/00-namespace.yaml");
        let namespaces = namespaces.display().to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "--filename"];
        kubectl.stdout(&[&apply[..], &[&namespaces]].concat()).await;
        forget_nodes(control_plane).await;
        let here = format!("--namespace={NAMESPACE}");
        // The next server has another port, and so is another one to the Lease of one that was killed.
        let leases = ["delete", "lease", "--all", &here];
        kubectl.stdout(&leases).await;
        for resource in ["secret", "configmap"] {
            let delete = ["delete", resource, CA, "--ignore-not-found", &here];
            kubectl.stdout(&delete).await;
        }
        let port = free_port().unwrap();
        let (manifests, mut flags) = rendered(flags, port);
        let kubeconfig = control_plane.kubeconfig_as(SERVICE_ACCOUNT);
        flags.extend([
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--lease-namespace={NAMESPACE}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--shutdown-delay-seconds=1".to_owned(),
        ]);
        let server = Self {
            control_plane,
            port,
            manifests,
            flags,
            _registration: control_plane.registered(&VERSIONS),
            serve: None,
            directory: Directory::create("lone-server-").unwrap(),
            _turn: turn,
        };
        server.apply().await;
        server
    }

    /// As [`Self::new`], with the server, once kube-apiserver finds it available.
    pub(crate) async fn started(flags: &[&str]) -> Self {
        let mut server = Self::new(flags).await;
        server.start_serve();
        server.is_available().await;
        server
    }

    pub(crate) fn start_serve(&mut self) {
        self.start_serve_with(&[]);
    }

    /// Starts the server with further flags, or other values of those that it has.
    pub(crate) fn start_serve_with(&mut self, more: &[&str]) {
        let name = |flag: &str| flag.split('=').next().map(str::to_owned);
        let is_replaced = |flag: &&str| more.iter().any(|it| name(it) == name(flag));
        let flags = self.flags.iter().map(String::as_str);
        let flags = flags.filter(|flag| !is_replaced(flag));
        let flags: Vec<&str> = flags.chain(more.iter().copied()).collect();
        self.serve = Some(start_binary("serve", &flags, self.directory.path()));
    }

    /// Ends the server as a crash does.
    pub(crate) fn kill_serve(&mut self) {
        self.serve = None;
    }

    /// Asks the server to end, as the kubelet does.
    pub(crate) fn terminate_serve(&self) {
        self.serve.as_ref().expect("it was started").terminate();
    }

    /// Takes from the server's role the right to the `resource` of this name. [`Self::apply`] gives it back.
    pub(crate) async fn forbid(&self, role: &str, resource: &str, name: &str) {
        let kubectl = self.control_plane.kubectl();
        let here = format!("--namespace={NAMESPACE}");
        let get = ["get", role, "sandbox-apiserver", &here, "--output=json"];
        let mut found: Value = serde_json::from_str(&kubectl.stdout(&get).await).unwrap();
        let rules = found["rules"].as_array_mut().unwrap();
        let n_rules = rules.len();
        let has = |rule: &Value, field: &str, value: &str| {
            let mut values = rule[field].as_array().into_iter().flatten();
            values.any(|it| it == value)
        };
        rules
            .retain(|rule| !(has(rule, "resources", resource) && has(rule, "resourceNames", name)));
        assert_ne!(rules.len(), n_rules, "there is such a right");
        let patch = json!({"rules": rules}).to_string();
        let patch = [
            "patch",
            role,
            "sandbox-apiserver",
            &here,
            "--type=merge",
            "--patch",
            &patch,
        ];
        kubectl.stdout(&patch).await;
    }

    /// Where the server is started.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Another server of this installation, which waits for the Lease.
    pub(crate) fn start_second(&self, port: u16) -> Process {
        let (port, own) = (
            format!("--secure-port={port}"),
            format!("--secure-port={}", self.port),
        );
        let flags = self
            .flags
            .iter()
            .map(|flag| if *flag == own { &port } else { flag });
        let flags: Vec<&str> = flags.map(String::as_str).collect();
        start_binary("second", &flags, self.directory.path())
    }

    /// Applies the manifests, again if they were before.
    pub(crate) async fn apply(&self) {
        let apply = ["apply", "--filename=-"];
        let kubectl = self.control_plane.kubectl();
        kubectl.stdout_with_input(&apply, &self.manifests).await;
    }

    /// Waits until kube-apiserver finds the server available.
    pub(crate) async fn is_available(&self) {
        let args = [
            "wait",
            "--for=condition=Available",
            "--timeout=60s",
            "apiservice",
        ];
        let names = names();
        let names = names.each_ref().map(String::as_str);
        let waited = self
            .control_plane
            .kubectl()
            .run(&[&args[..], &names].concat())
            .await;
        let log = self.serve.as_ref().map(|serve| serve.log_tail(40));
        let why = String::from_utf8_lossy(&waited.stderr).into_owned();
        assert!(
            waited.status.success(),
            "{why}\n{}",
            log.unwrap_or_default()
        );
    }

    pub(crate) fn admin(&self) -> Caller {
        Caller::new(self.control_plane.config_as(ADMIN))
    }

    /// By what kube-apiserver verifies the server; see [`bundle`].
    pub(crate) async fn bundle(&self) -> String {
        bundle(&self.admin()).await
    }

    /// Whether Secret and ConfigMap say that these are the CAs.
    pub(crate) async fn has_published(&self, bundle: &str) -> bool {
        self.kept("secrets", "ca.crt").await == bundle
            && self.kept("configmaps", "ca.crt").await == bundle
    }

    /// The value of an object of the CA, decoded if it is a Secret's; empty if there is none.
    pub(crate) async fn kept(&self, resource: &str, key: &str) -> String {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/{resource}/{CA}");
        let found = self.admin().get(&path).await.body;
        let value = found["data"][key].as_str().unwrap_or_default();
        match resource {
            "secrets" => String::from_utf8(BASE64_STANDARD.decode(value).unwrap()).unwrap(),
            _ => value.to_owned(),
        }
    }

    /// Changes the APIServices as an operator does.
    pub(crate) async fn patch_api_services(&self, spec: Value) {
        let patch = json!({"spec": spec}).to_string();
        let names = names();
        let [first, second] = names.each_ref().map(String::as_str);
        let args = [
            "patch",
            "apiservice",
            first,
            second,
            "--type=merge",
            "--patch",
            &patch,
        ];
        self.control_plane.kubectl().stdout(&args).await;
    }

    pub(crate) fn log(&self) -> String {
        self.serve.as_ref().map(Process::log).unwrap_or_default()
    }

    /// Waits until the log has `text`: what a round of work did shows before what the round says of it.
    pub(crate) async fn says(&self, text: &str) {
        eventually(SOON, "the log says so", async || self.log().contains(text)).await;
    }
}

fn names() -> [String; 2] {
    VERSIONS.map(|version| format!("{version}.{}", api_service::GROUP))
}

/// By what kube-apiserver verifies the server, PEM; empty if by nothing of its own.
pub(crate) async fn bundle(admin: &Caller) -> String {
    let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE_NAME}");
    let found = admin.get(&path).await.ok();
    let text = found["spec"]["caBundle"].as_str().unwrap_or_default();
    String::from_utf8(BASE64_STANDARD.decode(text).unwrap()).unwrap()
}

/// What the chart renders, as a list, and the flags of the server in it.
fn rendered(flags: &[&str], port: u16) -> (String, Vec<String>) {
    let objects = documents(&helm_template(flags));
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
    let mut server_flags = args_of(deployment.expect("the chart renders a Deployment"));
    server_flags.retain(|flag| !flag.starts_with("--secure-port"));
    let items = objects.into_iter().map(|object| led_here(object, port));
    let items: Vec<_> = items.collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    (list.to_string(), server_flags)
}
