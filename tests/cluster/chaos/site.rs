//! Where schedules are played: the server, nodes and agents behind lines that break, each a process of its own.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    line::{Line, Proxy},
    property::{Property, Verdict},
    schedule::{N_AGENTS, N_NODES},
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
const AGENTS: [&str; N_AGENTS] = ["agent-0", "agent-1"];
/// The file with the token that the server shows to agents.
const AGENT_TOKEN: &str = "agent-token";
/// Where the lines begin: what is behind one listens at the same port of 127.0.0.1, as an agent names one host and the ports that
/// it knows.
const AT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
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
    pub(super) agent: Option<Agent>,
}

/// An agent beside a node. What it keeps outlives its process.
pub(super) struct Agent {
    pub(super) line: Proxy,
    name: &'static str,
    flags: Vec<String>,
    directory: PathBuf,
    /// `None` once it was killed.
    process: Option<Process>,
}

impl Site {
    pub(super) async fn start() -> Self {
        let control_plane = control_plane::shared().forever();
        let turn = control_plane.api_service.lock().await;
        stage::prepare(control_plane).await;
        let directory = Directory::create("chaos-").unwrap();
        let authority = Authority::new("sandbox-apiserver").unwrap();
        stage::write_files(&authority, directory.path());
        write_agent_token(control_plane, &directory).await;
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
            options: StageOptions {
                serve_flags: vec![format!("--agent-token-file={AGENT_TOKEN}")],
                ..StageOptions::default()
            },
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

    /// Whether server and agents have neither ended nor panicked.
    pub(super) fn is_alive(&mut self) -> Verdict {
        for agent in self.nodes.iter_mut().filter_map(|it| it.agent.as_mut()) {
            agent.is_alive()?;
        }
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

    /// Mends all lines, nodes and agents.
    pub(super) async fn mend(&mut self) {
        for node in &mut self.nodes {
            node.line.set(Line::Open);
            if let Some(agent) = &mut node.agent {
                agent.line.set(Line::Open);
                if let Some(pid) = agent.pid() {
                    signal("CONT", &pid);
                }
                agent.begin();
            }
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
        let has_agent = index < N_AGENTS;
        let line_at = match has_agent {
            true => SocketAddr::from((AT, port)),
            false => SocketAddr::from((Ipv4Addr::LOCALHOST, line_port)),
        };
        let mut flags = vec![
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
            format!("--api-token={NODE_TOKEN}"),
        ];
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        if !has_agent {
            flags.push("--publish-period-seconds=1".to_owned());
            flags.push(kubeconfig.clone());
        }
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        Self {
            daemon: Nodes::new(admin_port),
            line: Proxy::start(line_at, port).unwrap(),
            process: start_binary(NAMES[index], &flags, directory.path()),
            agent: has_agent.then(|| Agent::start(index, port, kubeconfig, directory)),
        }
    }
}

impl Agent {
    fn start(index: usize, daemon_port: u16, kubeconfig: String, directory: &Directory) -> Self {
        let port = free_port().unwrap();
        let name = AGENTS[index];
        let flags = vec![
            "agent".to_owned(),
            format!("--node-name=sim-{index:04}"),
            format!("--sandboxd-address=127.0.0.1:{daemon_port}"),
            "--sandboxd-token-file=token".to_owned(),
            format!("--listen-address=127.0.0.1:{port}"),
            format!("--advertise-host={AT}"),
            format!("--state-dir={name}"),
            "--publish-period-seconds=1".to_owned(),
            kubeconfig,
        ];
        let mut agent = Self {
            line: Proxy::start(SocketAddr::from((AT, port)), port).unwrap(),
            name,
            flags,
            directory: directory.path().to_owned(),
            process: None,
        };
        agent.begin();
        agent
    }

    /// Starts it, if it was killed.
    pub(super) fn begin(&mut self) {
        let flags: Vec<_> = self.flags.iter().map(String::as_str).collect();
        let start = || start_binary(self.name, &flags, &self.directory);
        self.process.get_or_insert_with(start);
    }

    /// Ends it as a crash does.
    pub(super) fn kill(&mut self) {
        // At once: the process' own shell takes a while.
        if let Some(pid) = self.pid() {
            signal("KILL", &pid);
        }
        self.process = None;
    }

    /// Its process id, if it runs.
    pub(super) fn pid(&self) -> Option<String> {
        self.process.as_ref()?.pid()
    }

    fn is_alive(&mut self) -> Verdict {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let exited = process.exited().unwrap();
        let panicked = process.log().contains("panicked at");
        let what = || format!("it ended: {exited:?}\n{}", process.log_tail(40));
        Property::Alive.demand(exited.is_none() && !panicked, what)
    }
}

async fn write_agent_token(control_plane: &ControlPlane, directory: &Directory) {
    let create = [
        "create",
        "token",
        "sandbox-apiserver",
        "--namespace=sandbox-system",
        "--audience=sandbox-agent",
        "--duration=24h",
    ];
    let token = control_plane.kubectl().stdout(&create).await;
    std::fs::write(directory.path().join(AGENT_TOKEN), token.trim()).unwrap();
}

/// What the node publishes now, as server-side apply wants it.
pub(super) async fn inventory(daemon: Nodes) -> Value {
    let mut inventory = daemon.inventory(0).await;
    inventory["apiVersion"] = json!("extensions.agents.x-k8s.io/v1beta1");
    inventory["kind"] = json!("NodeInventory");
    inventory
}
