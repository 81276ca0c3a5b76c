//! The product on its stage: simulated nodes and `serve`, real processes of the built binary, beside the control plane.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    api_service::SERVER_NAME,
    components::free_port,
    control_plane::ControlPlane,
    pki::Authority,
    process::{Directory, Process},
};

/// The identity of the server, as the shipped manifests bind it.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:sandbox-system:sandbox-apiserver";
const BINARY: &str = env!("CARGO_BIN_EXE_sandbox-apiserver");
/// Generous, since other builds may share the machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// What the stage looks like.
#[derive(Clone, Debug)]
pub(crate) struct StageOptions {
    pub(crate) nodes: usize,
    pub(crate) sandboxes: usize,
    /// Warm VMs on each node.
    pub(crate) warm: u32,
    pub(crate) publish_period: Duration,
    /// Further flags of `sim`, and of `serve`.
    pub(crate) sim_flags: Vec<String>,
    pub(crate) serve_flags: Vec<String>,
}

impl Default for StageOptions {
    fn default() -> Self {
        Self {
            nodes: 3,
            sandboxes: 0,
            warm: 20,
            publish_period: Duration::from_secs(30),
            sim_flags: Vec::new(),
            serve_flags: Vec::new(),
        }
    }
}

/// Nodes and a server. Both end when it is dropped.
pub(crate) struct Stage {
    options: StageOptions,
    kubeconfig: PathBuf,
    authority: Authority,
    pub(crate) port: u16,
    pub(crate) sim_admin_port: u16,
    // Dropped in order: the server goes before its nodes, the directory last.
    pub(crate) serve: Process,
    pub(crate) sim: Process,
    directory: Directory,
}

impl Stage {
    /// Applies CRDs and RBAC as shipped, starts the nodes, then the server, and returns when it is ready.
    ///
    /// # Panics
    /// When one of them does not start; the message shows the ends of the logs.
    pub(crate) async fn start(control_plane: &ControlPlane, options: StageOptions) -> Self {
        control_plane.apply_crds(Path::new("crds")).await;
        for file in ["00-namespace", "10-rbac", "20-user-roles"] {
            let file = format!("--filename=apiservice/{file}.yaml");
            control_plane
                .kubectl()
                .stdout(&["apply", "--server-side", "--force-conflicts", &file])
                .await;
        }
        let directory = Directory::create("stage-").expect("a directory can be made");
        let authority = Authority::new("sandbox-apiserver").expect("a CA can be made");
        let serving = authority
            .serving(&[SERVER_NAME, "localhost", "127.0.0.1"])
            .expect("a certificate can be made");
        let dir = directory.path();
        for (file, content) in [
            ("tls.crt", &serving.certificate_pem),
            ("tls.key", &serving.key_pem),
            ("token", &"sim".to_owned()),
        ] {
            std::fs::write(dir.join(file), content).expect("a file can be written");
        }
        let (port, sim_admin_port) = (free_port().expect("a port"), free_port().expect("a port"));
        let admin = control_plane.kubeconfig_as(crate::users::ADMIN);
        let sim = start_sim(&options, &admin, sim_admin_port, dir);
        let kubeconfig = control_plane.kubeconfig_as(SERVICE_ACCOUNT);
        let serve = start_serve(&options, &kubeconfig, port, dir);
        let mut stage = Self {
            options,
            kubeconfig,
            authority,
            port,
            sim_admin_port,
            serve,
            sim,
            directory,
        };
        stage.wait_until_ready(control_plane).await;
        stage
    }

    /// The CA of the server's certificate, PEM.
    pub(crate) fn ca(&self) -> String {
        self.authority.pem()
    }

    /// Kills the server and starts it again on the same port, with the same flags.
    pub(crate) async fn restart_serve(&mut self, control_plane: &ControlPlane) {
        // The old process is gone once the new value takes its place; its port and Lease are free then.
        let idle = Process::start(
            "stopped",
            Path::new("/bin/true"),
            [] as [&str; 0],
            self.directory.path(),
        );
        drop(std::mem::replace(
            &mut self.serve,
            idle.expect("true starts"),
        ));
        self.serve = start_serve(
            &self.options,
            &self.kubeconfig,
            self.port,
            self.directory.path(),
        );
        self.wait_until_ready(control_plane).await;
    }

    /// Waits until `/readyz` says ok.
    pub(crate) async fn wait_until_ready(&mut self, control_plane: &ControlPlane) {
        let deadline = Instant::now() + READY_TIMEOUT;
        let server = format!("--server=https://localhost:{}", self.port);
        let ca = self.directory.path().join("ca.crt");
        std::fs::write(&ca, self.authority.pem()).expect("a file can be written");
        let ca = format!("--certificate-authority={}", ca.display());
        loop {
            let probe = control_plane
                .kubectl()
                .run(&["get", "--raw", "/readyz", &server, &ca])
                .await;
            if probe.status.success() {
                return;
            }
            let ended = self.serve.exited().ok().flatten().is_some();
            assert!(
                !ended && Instant::now() < deadline,
                "the server is not ready: {}\n{}{}",
                String::from_utf8_lossy(&probe.stderr),
                self.serve.log_tail(40),
                self.sim.log_tail(10)
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn start_sim(options: &StageOptions, kubeconfig: &Path, admin_port: u16, dir: &Path) -> Process {
    let mut flags = vec![
        "sim".to_owned(),
        format!("--nodes={}", options.nodes),
        format!("--sandboxes={}", options.sandboxes),
        format!("--warm={}", options.warm),
        format!(
            "--publish-period-seconds={}",
            options.publish_period.as_secs()
        ),
        format!("--admin-address=127.0.0.1:{admin_port}"),
        format!("--kubeconfig={}", kubeconfig.display()),
    ];
    flags.extend(options.sim_flags.iter().cloned());
    Process::start("sim", Path::new(BINARY), flags, dir).expect("the nodes start")
}

fn start_serve(options: &StageOptions, kubeconfig: &Path, port: u16, dir: &Path) -> Process {
    let mut flags = vec![
        "serve".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        "--tls-cert-file=tls.crt".to_owned(),
        "--tls-private-key-file=tls.key".to_owned(),
        "--sandboxd-token-file=token".to_owned(),
        "--node-address-cidrs=127.0.0.0/8".to_owned(),
        "--lease-namespace=sandbox-system".to_owned(),
        "--shutdown-delay-seconds=0".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
    ];
    flags.extend(options.serve_flags.iter().cloned());
    Process::start("serve", Path::new(BINARY), flags, dir).expect("the server starts")
}
