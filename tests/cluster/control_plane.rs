//! A Kubernetes control plane made of the real binaries: that of a cluster without nodes.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use k8s_openapi::{
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt as _,
    api::{ObjectMeta, PostParams},
    runtime::wait::{await_condition, conditions},
};

use sandbox_apiserver::serving::PemPair;

use crate::{
    components::{self, Installation},
    etcd::{self, KeyValue, Writes},
    kubectl::Kubectl,
    pki::Authority,
    process::{Directory, Process},
    users::{ADMIN, Users},
};

/// Generous, since other builds may share the machine; kube-apiserver alone is ready after 3 s on two idle cores.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Lines of each component's log that a failed start or a failed test shows.
const LOG_TAIL_LINES: usize = 15;

/// A running control plane. Everything ends when it is dropped, or when the test binary ends in whatever way.
pub(crate) struct ControlPlane {
    /// Held by whoever uses the names of the APIServices and their Service, of which a cluster has one.
    pub(crate) api_service: tokio::sync::Mutex<()>,
    binaries: PathBuf,
    etcd_endpoint: String,
    users: Users,
    // Dropped from here on in order: a client goes before its server, and the directory goes last.
    controller_manager: Process,
    apiserver: Process,
    etcd: Process,
    directory: Directory,
}

/// The control plane that all tests of this binary share, started by the first that asks.
///
/// # Panics
/// When the control plane does not start; the message says why and shows the ends of the logs.
#[track_caller]
pub(crate) fn shared() -> Shared {
    static CONTROL_PLANE: LazyLock<Result<ControlPlane>> = LazyLock::new(ControlPlane::start);
    match &*CONTROL_PLANE {
        Ok(control_plane) => Shared(control_plane),
        Err(error) => panic!("no control plane: {error:#}"),
    }
}

/// A test's hold on the shared control plane. It shows the ends of the logs if the test panics.
pub(crate) struct Shared(&'static ControlPlane);

impl Shared {
    /// For what outlives the test.
    pub(crate) fn forever(&self) -> &'static ControlPlane {
        self.0
    }
}

impl std::ops::Deref for Shared {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(control_plane) = self;
            eprintln!(
                "{}",
                log_tails(&[
                    &control_plane.etcd,
                    &control_plane.apiserver,
                    &control_plane.controller_manager,
                ])
            );
        }
    }
}

impl ControlPlane {
    /// One for the caller alone, in which nobody else writes.
    ///
    /// # Panics
    /// When it does not start, as for [`shared`].
    pub(crate) fn own() -> Self {
        Self::start().unwrap_or_else(|error| panic!("no control plane: {error:#}"))
    }

    /// Starts a control plane and waits until it answers and its controllers work.
    fn start() -> Result<Self> {
        let binaries = components::binaries()?;
        let directory = Directory::create("control-plane-")?;
        let dir = directory.path();
        let installation = Installation {
            binaries: &binaries,
            dir,
        };
        let authority = Authority::new("kubernetes-ca")?;
        installation.write_keys(&authority)?;

        let port = components::free_port()?;
        let server = format!("https://127.0.0.1:{port}");
        let users = Users::new(dir.to_owned(), server, authority);
        let admin = Kubectl::new(&binaries, &users.kubeconfig(ADMIN)?, dir);

        let etcd_endpoint = format!("http://127.0.0.1:{}", components::free_port()?);
        let mut etcd = installation.start_etcd(&etcd_endpoint)?;
        let mut apiserver = installation.start_apiserver(port, &etcd_endpoint)?;
        wait_for(
            &admin,
            &["get", "--raw", "/readyz"],
            &mut [&mut etcd, &mut apiserver],
        )?;
        let mut controller_manager = installation
            .start_controller_manager(&users.kubeconfig("system:kube-controller-manager")?)?;
        // Made by a controller, in the namespace that kube-apiserver makes by itself.
        wait_for(
            &admin,
            &["get", "serviceaccount", "default", "--namespace=default"],
            &mut [&mut etcd, &mut apiserver, &mut controller_manager],
        )?;

        Ok(Self {
            api_service: tokio::sync::Mutex::new(()),
            binaries,
            etcd_endpoint,
            users,
            controller_manager,
            apiserver,
            etcd,
            directory,
        })
    }

    /// A client of the cluster's administrator.
    ///
    /// A new one each time: a client's connections belong to the runtime it is made in, and each test has its own.
    pub(crate) fn client(&self) -> kube::Client {
        self.client_as(ADMIN)
    }

    /// A client of `user`, known by a client certificate, who may do nothing until a test grants it.
    pub(crate) fn client_as(&self, user: &str) -> kube::Client {
        self.users
            .client(user)
            .expect("a certificate can be issued for the user")
    }

    /// The configuration of a client of `user`, as for [`Self::client_as`].
    pub(crate) fn config_as(&self, user: &str) -> kube::Config {
        self.users
            .config(user)
            .expect("a certificate can be issued for the user")
    }

    /// The CA of kube-apiserver's certificate, PEM.
    pub(crate) fn ca(&self) -> String {
        self.users.ca()
    }

    /// A kubeconfig of `user`, as for [`Self::client_as`].
    pub(crate) fn kubeconfig_as(&self, user: &str) -> PathBuf {
        self.users
            .kubeconfig(user)
            .expect("a certificate can be issued for the user")
    }

    /// kubectl as `user`, as for [`Self::client_as`].
    pub(crate) fn kubectl_as(&self, user: &str) -> Kubectl {
        self.kubectl_at(&self.kubeconfig_as(user))
    }

    /// kubectl with a configuration of its own.
    pub(crate) fn kubectl_at(&self, kubeconfig: &Path) -> Kubectl {
        Kubectl::new(&self.binaries, kubeconfig, self.directory.path())
    }

    /// kubectl as the cluster's administrator.
    pub(crate) fn kubectl(&self) -> Kubectl {
        self.kubectl_as(ADMIN)
    }

    /// The client certificate by which aggregated servers know kube-apiserver.
    pub(crate) fn front_proxy(&self) -> PemPair {
        let read = |extension| {
            let file = format!("front-proxy-client.{extension}");
            std::fs::read_to_string(self.directory.path().join(file))
                .expect("it is written before kube-apiserver starts")
        };
        PemPair {
            certificate: read("crt"),
            private_key: read("key"),
        }
    }

    /// A token of the ServiceAccount, as a Pod finds it.
    pub(crate) async fn service_account_token(&self, namespace: &str, name: &str) -> String {
        let args = ["create", "token", name, "--namespace", namespace];
        self.kubectl().stdout(&args).await.trim_end().to_owned()
    }

    /// A new namespace whose name starts with `prefix`.
    pub(crate) async fn create_namespace(&self, prefix: &str) -> String {
        let namespace = Namespace {
            metadata: ObjectMeta {
                generate_name: Some(format!("{prefix}-")),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        Api::all(self.client())
            .create(&PostParams::default(), &namespace)
            .await
            .expect("a namespace can be made")
            .metadata
            .name
            .expect("a created object has a name")
    }

    /// Applies every CustomResourceDefinition of the directory and waits until all are served.
    pub(crate) async fn apply_crds(&self, dir: &Path) {
        let crds = format!("--filename={}", dir.display());
        let kubectl = self.kubectl();
        kubectl.stdout(&["apply", "--server-side", &crds]).await;
        let established = "--for=condition=Established";
        kubectl.stdout(&["wait", established, &crds]).await;
    }

    /// Makes kube-apiserver serve a custom resource.
    pub(crate) async fn install_crd(&self, crd: serde_json::Value) {
        let crd: CustomResourceDefinition =
            serde_json::from_value(crd).expect("it is a definition");
        let crds: Api<CustomResourceDefinition> = Api::all(self.client());
        let created = crds.create(&PostParams::default(), &crd).await;
        let name = created.expect("the definition is taken").name_any();
        let established = await_condition(crds, &name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(60), established)
            .await
            .expect("the resource is served in time")
            .expect("the definition can be watched");
    }

    /// All that kube-apiserver logged so far.
    pub(crate) fn apiserver_log(&self) -> String {
        self.apiserver.log()
    }

    /// What etcd has, as its versions count it.
    pub(crate) async fn etcd_writes(&self) -> Writes {
        let writes = Writes::read(&self.etcd_endpoint).await;
        writes.expect("etcd answers")
    }

    /// Every key of etcd that starts with `prefix`. Kubernetes keeps its objects under `/registry/`.
    pub(crate) async fn etcd_get_prefix(&self, prefix: &str) -> Vec<KeyValue> {
        etcd::get_prefix(&self.etcd_endpoint, prefix)
            .await
            .expect("etcd answers")
    }
}

/// Repeats a command until it succeeds. Fails early when one of the components that it needs has ended.
fn wait_for(kubectl: &Kubectl, args: &[&str], components: &mut [&mut Process]) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let output = kubectl.run_blocking(args)?;
        if output.status.success() {
            return Ok(());
        }
        let mut failure = None;
        for component in components.iter_mut() {
            if let Some(status) = component.exited()? {
                failure = Some(format!("{} ended with {status}", component.name()));
            }
        }
        if Instant::now() > deadline {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let args = args.join(" ");
            failure = Some(format!("`kubectl {args}` still fails: {stderr}"));
        }
        if let Some(failure) = failure {
            let components: Vec<&Process> = components.iter().map(|it| &**it).collect();
            bail!("{failure}\n{}", log_tails(&components));
        }
        // A pause between processes that start anew each time, not a guess at how long readiness takes.
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn log_tails(components: &[&Process]) -> String {
    components
        .iter()
        .map(|component| component.log_tail(LOG_TAIL_LINES))
        .collect()
}
