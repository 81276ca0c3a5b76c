//! Who is asked: the product behind kube-apiserver, a stub, or a custom resource of the same schema.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use super::{
    client::{Client, MERGE},
    relay::Relay,
    server::Server,
    stub::{self, Stub},
};
use crate::{
    control_plane::{self, ControlPlane},
    kubectl::Kubectl,
    nodes::Nodes,
    stage::{self, OwnNode, SharedStage, TEMPLATE},
    twin,
    users::ADMIN,
};

/// The Lease of a server, in the check's namespace.
const LEASE: &str = "sandbox-apiserver";

/// The side that a check asks, with a namespace that nobody else uses.
///
/// Paths and objects are written for sandboxes; a custom resource is asked for its own, and its answers read as if they
/// were about sandboxes.
pub(super) struct Subject {
    pub(super) control_plane: &'static ControlPlane,
    pub(super) namespace: String,
    side: Side,
}

enum Side {
    Product(SharedStage),
    /// Has the stage only so that a custom resource is asked beside the same control plane.
    CustomResource,
    Stub(&'static Stub),
}

impl Subject {
    pub(super) async fn product() -> Self {
        let stage = stage::shared().await;
        Self::new(stage.control_plane, Side::Product(stage)).await
    }

    pub(super) async fn custom_resource() -> Self {
        let control_plane = control_plane::shared().forever();
        twin::install(control_plane).await;
        Self::new(control_plane, Side::CustomResource).await
    }

    pub(super) async fn stub() -> Self {
        let control_plane = control_plane::shared().forever();
        Self::new(control_plane, Side::Stub(stub::shared())).await
    }

    async fn new(control_plane: &'static ControlPlane, side: Side) -> Self {
        Self {
            control_plane,
            namespace: control_plane.create_namespace("conformance").await,
            side,
        }
    }

    /// Path of the sandboxes of the check's namespace.
    pub(super) fn collection(&self) -> String {
        stage::collection(&self.namespace)
    }

    /// Path of one of them.
    pub(super) fn item(&self, name: &str) -> String {
        stage::item(&self.namespace, name)
    }

    /// The administrator, through kube-apiserver.
    pub(super) fn proxied(&self) -> Client {
        self.proxied_as(ADMIN)
    }

    /// A user who may do nothing until it is granted, through kube-apiserver.
    pub(super) fn proxied_as(&self, user: &str) -> Client {
        self.proxied_by(self.control_plane.config_as(user))
    }

    /// Who shows a token, through kube-apiserver.
    pub(super) fn proxied_with_token(&self, token: &str) -> Client {
        let mut config = self.control_plane.config_as(ADMIN);
        config.auth_info = serde_json::from_value(json!({"token": token})).unwrap();
        self.proxied_by(config)
    }

    fn proxied_by(&self, config: kube::Config) -> Client {
        match self.side {
            Side::Stub(_) => Client::new(self.pointed(config), false),
            _ => Client::new(config, matches!(self.side, Side::CustomResource)),
        }
    }

    /// A client for requests that change the protocol, as the administrator: through kube-apiserver, and at the server's own port.
    ///
    /// Over HTTP/1.1, as the clients of Kubernetes do.
    pub(super) fn upgraders(&self) -> [kube::Client; 2] {
        let config = || self.control_plane.config_as(ADMIN);
        let proxied = match self.side {
            Side::Stub(_) => self.pointed(config()),
            _ => config(),
        };
        [proxied, self.pointed(config())].map(|config| kube::Client::try_from(config).unwrap())
    }

    /// The administrator, at the server's own port. A custom resource has none but kube-apiserver's.
    pub(super) fn direct(&self) -> Client {
        self.direct_as(ADMIN)
    }

    /// A user who may do nothing until it is granted, at the server's own port.
    pub(super) fn direct_as(&self, user: &str) -> Client {
        let config = self.control_plane.config_as(user);
        match self.side {
            Side::CustomResource => Client::new(config, true),
            _ => Client::new(self.pointed(config), false),
        }
    }

    /// Both ways to the server, as the administrator.
    pub(super) fn both_ways(&self) -> [Client; 2] {
        [self.proxied(), self.direct()]
    }

    /// The server's own port.
    ///
    /// # Panics
    /// For a custom resource, which has none.
    pub(super) fn address(&self) -> SocketAddr {
        match &self.side {
            Side::Product(stage) => (Ipv4Addr::LOCALHOST, stage.port).into(),
            Side::Stub(stub) => stub.address,
            Side::CustomResource => panic!("a custom resource has no port of its own"),
        }
    }

    /// The CA of the certificate at [`Self::address`], PEM.
    pub(super) fn ca(&self) -> String {
        match &self.side {
            Side::Product(stage) => stage.ca(),
            Side::Stub(stub) => stub.authority.pem(),
            Side::CustomResource => panic!("a custom resource has no port of its own"),
        }
    }

    /// Address and CA of the servers that [`Self::both_ways`] leads to, the own port first. A custom resource has only
    /// kube-apiserver's.
    pub(super) fn endpoints(&self) -> Vec<(SocketAddr, String)> {
        match self.side {
            Side::Product(_) => vec![
                (self.address(), self.ca()),
                kube_apiserver(self.control_plane),
            ],
            Side::CustomResource => vec![kube_apiserver(self.control_plane)],
            Side::Stub(_) => vec![(self.address(), self.ca())],
        }
    }

    /// A text that is written for sandboxes, for this side: for what does not go through a [`Client`].
    pub(super) fn translated(&self, text: &str) -> String {
        match self.side {
            Side::CustomResource => twin::for_twin(text),
            Side::Product(_) | Side::Stub(_) => text.to_owned(),
        }
    }

    fn pointed(&self, config: kube::Config) -> kube::Config {
        stage::pointed_at(config, &self.ca(), self.address().port())
    }

    /// kubectl as the administrator. For a custom resource, say `twins` in the arguments: nothing is translated.
    pub(super) fn kubectl(&self) -> Kubectl {
        match &self.side {
            Side::Stub(stub) => self.control_plane.kubectl_at(&stub.kubeconfig()),
            _ => self.control_plane.kubectl(),
        }
    }

    /// A text about sandboxes as kubectl is to hear it: about twins, where a custom resource is asked.
    pub(super) fn said(&self, text: &str) -> String {
        match self.side {
            Side::CustomResource => twin::for_twin(text),
            _ => text.to_owned(),
        }
    }

    /// Whether there are nodes behind the server: none are behind a custom resource.
    pub(super) fn has_nodes(&self) -> bool {
        !matches!(self.side, Side::CustomResource)
    }

    /// A Sandbox as a client sends it.
    pub(super) fn mk(&self, name: &str) -> Value {
        stage::sandbox(name, TEMPLATE)
    }

    /// Sets the check up with a sandbox, which is given as the answer shows it.
    pub(super) async fn create(&self, name: &str) -> Value {
        self.create_from(self.mk(name)).await
    }

    /// As [`Self::create`], from any valid object. Waits for a warm VM, as clients do.
    pub(super) async fn create_from(&self, object: Value) -> Value {
        if let Side::Stub(_) = self.side {
            return mk_created(object, &self.namespace);
        }
        self.create_at(&self.proxied(), &object).await
    }

    /// As [`Self::create_from`], through this very client, of the stub too.
    pub(super) async fn create_at(&self, client: &Client, object: &Value) -> Value {
        loop {
            let answer = client.post(&self.collection(), object).await;
            if answer.causes() != ["NoWarmCapacity"] {
                return answer.ok();
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    /// Sets a label of a sandbox, and gives the sandbox as the answer shows it.
    pub(super) async fn label(&self, name: &str, key: &str, value: &str) -> Value {
        let patch = json!({"metadata": {"labels": {key: value}}});
        if let Side::Stub(_) = self.side {
            return mk_created(self.mk(name), &self.namespace);
        }
        let client = self.proxied();
        client.patch(MERGE, &self.item(name), &patch).await.ok()
    }

    /// The nodes behind the server.
    pub(super) fn nodes(&self) -> Nodes {
        match &self.side {
            Side::Product(stage) => stage.nodes,
            Side::Stub(stub) => Nodes::new(stub.plain_port),
            Side::CustomResource => panic!("a custom resource has no nodes"),
        }
    }

    /// A node that no other check uses, alone in having its template.
    pub(super) fn own_node(&self) -> OwnNode {
        match &self.side {
            Side::Product(stage) => stage.own_node(),
            Side::Stub(_) => OwnNode {
                index: 0,
                template: TEMPLATE.to_owned(),
            },
            Side::CustomResource => panic!("a custom resource has no nodes"),
        }
    }

    /// Publishes a node's inventory as it is now.
    pub(super) async fn publish(&self, node: usize) {
        if let Side::Product(stage) = &self.side {
            stage.publish(node).await;
        }
    }

    /// Publishes an inventory that was read before.
    pub(super) async fn publish_late(&self, inventory: Value) {
        if let Side::Product(stage) = &self.side {
            stage.publish_late(inventory).await;
        }
    }

    /// Another namespace that nobody else uses.
    pub(super) async fn other_namespace(&self) -> String {
        self.control_plane.create_namespace("conformance").await
    }

    /// A server of its own for what ends or changes one, not waited for.
    pub(super) fn server(&self, flags: &[&str]) -> Server {
        self.server_as(ADMIN, flags)
    }

    /// As [`Self::server`], known to kube-apiserver as `user`, who may do nothing until it is granted.
    pub(super) fn server_as(&self, user: &str, flags: &[&str]) -> Server {
        match self.side {
            Side::Product(_) => Server::start(self.control_plane, user, &self.namespace, flags),
            Side::Stub(stub) => Server::stub(self.control_plane, stub),
            Side::CustomResource => panic!("a custom resource has no server of its own"),
        }
    }

    /// As [`Self::server`], one that listens and cannot start, since somebody else has its Lease; see [`Self::let_start`].
    pub(super) async fn starting_server(&self) -> Server {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEASE, "namespace": self.namespace},
            "spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 3_600},
        });
        let kubectl = self.control_plane.kubectl();
        kubectl
            .stdout_with_input(&["create", "--filename=-"], &lease.to_string())
            .await;
        let server = self.server(&[]);
        server.listens().await;
        server
    }

    /// Lets a [`Self::starting_server`] have its Lease.
    pub(super) async fn let_start(&self) {
        let delete = ["delete", "lease", LEASE, "--namespace", &self.namespace];
        self.control_plane.kubectl().stdout(&delete).await;
    }

    /// As [`Self::server`], for a server whose only way to kube-apiserver is the relay.
    pub(super) fn server_through(&self, relay: &Relay, flags: &[&str]) -> Server {
        let (control_plane, kubeconfig) = (self.control_plane, relay.kubeconfig());
        match self.side {
            Side::Product(_) => {
                Server::start_with(control_plane, &kubeconfig, &self.namespace, flags)
            }
            _ => self.server(flags),
        }
    }

    /// The log of the server so far; empty where there is none.
    pub(super) fn log(&self) -> String {
        match &self.side {
            Side::Product(stage) => stage.serve.log(),
            _ => String::new(),
        }
    }
}

/// Where kube-apiserver is, and the CA of its certificate, as kubeconfigs say.
fn kube_apiserver(control_plane: &ControlPlane) -> (SocketAddr, String) {
    let kubeconfig = std::fs::read(control_plane.kubeconfig_as(ADMIN)).unwrap();
    let kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
    let cluster = &kubeconfig["clusters"][0]["cluster"];
    let text = |field: &str| cluster[field].as_str().unwrap();
    let address = text("server").trim_start_matches("https://");
    let ca = std::fs::read_to_string(text("certificate-authority"));
    (address.parse().unwrap(), ca.unwrap())
}

/// What a set-up goes on with where nothing is made.
fn mk_created(mut object: Value, namespace: &str) -> Value {
    let metadata = &mut object["metadata"];
    metadata["namespace"] = namespace.into();
    metadata["uid"] = "00000000-0000-4000-8000-000000000000".into();
    metadata["resourceVersion"] = "1".into();
    object
}
