//! Where schedules are played: the server, and nodes behind lines that break, each a process of its own.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    line::{Line, Proxy},
    property::{Property, Verdict},
    schedule::N_NODES,
};
use crate::{
    api_service::Turn,
    caller::Caller,
    components::free_port,
    control_plane::{self, ControlPlane},
    nodes::Nodes,
    pki::Authority,
    process::{Directory, Process, signal},
    stage::{
        self, NODE_TOKEN, SERVICE_ACCOUNT, StageOptions, TEMPLATE, eventually, pointed_at,
        start_binary, start_serve,
    },
    users::ADMIN,
};

const NAMES: [&str; N_NODES] = ["sim-0", "sim-1", "sim-2"];
/// Generous, since other builds may share the machine.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The server and its nodes. All of it ends when it is dropped.
pub(super) struct Site {
    pub(super) nodes: Vec<Node>,
    options: StageOptions,
    kubeconfig: PathBuf,
    config: kube::Config,
    admin: kube::Config,
    port: u16,
    /// `None` once it was killed.
    serve: Option<Process>,
    control_plane: &'static ControlPlane,
    directory: Directory,
    _turn: Turn<'static>,
}

/// A node.
pub(super) struct Node {
    pub(super) daemon: Nodes,
    pub(super) line: Proxy,
    pub(super) process: Process,
}

impl Site {
    pub(super) async fn start() -> Self {
        let control_plane = control_plane::shared().forever();
        let turn = control_plane.api_service.lock().await;
        stage::prepare(control_plane).await;
        let directory = Directory::create("chaos-").unwrap();
        let authority = Authority::new("sandbox-apiserver").unwrap();
        stage::write_files(&authority, directory.path());
        let nodes = (0..N_NODES).map(|index| Node::start(index, control_plane, &directory));
        let nodes: Vec<_> = nodes.collect();
        for node in &nodes {
            let answers = async || node.daemon.answer().await;
            eventually(READY_WITHIN, "the node answers", answers).await;
        }
        let port = free_port().unwrap();
        let admin = control_plane.config_as(ADMIN);
        let mut site = Self {
            nodes,
            options: StageOptions::default(),
            kubeconfig: control_plane.kubeconfig_as(SERVICE_ACCOUNT),
            config: pointed_at(admin.clone(), &authority.pem(), port),
            admin,
            port,
            serve: None,
            control_plane,
            directory,
            _turn: turn,
        };
        site.begin_serve();
        if let Err(violation) = site.is_ready().await {
            panic!("{violation}");
        }
        site
    }

    /// A client of the server's own port, with connections of its own.
    pub(super) fn caller(&self) -> Caller {
        Caller::new(self.config.clone())
    }

    /// A client of kube-apiserver.
    pub(super) fn publisher(&self) -> Caller {
        Caller::new(self.admin.clone())
    }

    pub(super) async fn namespace(&self) -> String {
        self.control_plane.create_namespace("chaos").await
    }

    /// Ends the server as a crash does.
    pub(super) fn kill_serve(&mut self) {
        self.serve = None;
    }

    /// Starts a server, if it was killed.
    pub(super) fn begin_serve(&mut self) {
        let dir = self.directory.path();
        let start = || start_serve(&self.options, &self.kubeconfig, self.port, dir);
        self.serve.get_or_insert_with(start);
    }

    /// The server's process id, if it runs.
    pub(super) fn serve_pid(&self) -> Option<String> {
        self.serve.as_ref()?.pid()
    }

    /// Waits until the server is ready.
    pub(super) async fn is_ready(&mut self) -> Verdict {
        let (caller, deadline) = (self.caller(), Instant::now() + READY_WITHIN);
        loop {
            let answer = caller.try_get("/readyz").await;
            if answer.is_some_and(|answer| answer.status == 200) {
                return Ok(());
            }
            self.is_alive()?;
            let what = || format!("it is not ready\n{}", self.log_tail(40));
            Property::Alive.demand(Instant::now() < deadline, what)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether the server has neither ended nor panicked.
    pub(super) fn is_alive(&mut self) -> Verdict {
        let exited = self.serve.as_mut().and_then(|it| it.exited().unwrap());
        let panicked = self
            .serve
            .as_ref()
            .is_some_and(|it| it.log().contains("panicked at"));
        let what = || format!("it ended: {exited:?}\n{}", self.log_tail(40));
        Property::Alive.demand(exited.is_none() && !panicked, what)
    }

    pub(super) fn log_tail(&self, n_lines: usize) -> String {
        let serve = self.serve.as_ref();
        serve.map_or_else(String::new, |serve| serve.log_tail(n_lines))
    }

    /// Mends all lines and nodes.
    pub(super) async fn mend(&self) {
        for node in &self.nodes {
            node.line.set(Line::Open);
            if let Some(pid) = node.process.pid() {
                signal("CONT", &pid);
            }
            node.daemon.clear_faults(0).await;
            node.daemon.start(0).await;
        }
    }

    /// What each node wrote down so far, as the number of entries.
    pub(super) async fn journals(&self, since: &[u64]) -> Vec<Vec<Value>> {
        let mut journals = Vec::new();
        for (node, since) in self.nodes.iter().zip(since) {
            journals.push(node.daemon.journal(0, *since).await);
        }
        journals
    }
}

impl Node {
    fn start(index: usize, control_plane: &ControlPlane, directory: &Directory) -> Self {
        let [port, line_port, admin_port] = [(); 3].map(|()| free_port().unwrap());
        let kubeconfig = control_plane.kubeconfig_as(ADMIN);
        let flags = [
            "sim".to_owned(),
            "--nodes=1".to_owned(),
            format!("--first-node={index}"),
            format!("--first-port={port}"),
            format!("--first-advertised-port={line_port}"),
            format!("--admin-address=127.0.0.1:{admin_port}"),
            format!("--templates={TEMPLATE}"),
            "--warm=4".to_owned(),
            "--refill-ms=50".to_owned(),
            "--journal=100000".to_owned(),
            "--publish-period-seconds=1".to_owned(),
            format!("--api-token={NODE_TOKEN}"),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        Self {
            daemon: Nodes::new(admin_port),
            line: Proxy::start(line_port, port).unwrap(),
            process: start_binary(NAMES[index], &flags, directory.path()),
        }
    }
}

/// What the node publishes now, as server-side apply wants it.
pub(super) async fn inventory(daemon: Nodes) -> Value {
    let mut inventory = daemon.inventory(0).await;
    inventory["apiVersion"] = json!("extensions.agents.x-k8s.io/v1beta1");
    inventory["kind"] = json!("NodeInventory");
    inventory
}
