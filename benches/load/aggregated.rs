//! Gets and claims through kube-apiserver, beside gets of a server that it proxies to as well and that only sends bytes.

use anyhow::Context as _;
use bytes::Bytes;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};

use crate::{
    api_service::{Backend, NAMESPACE},
    bare::Bare,
    claims,
    client::Client,
    cluster::{CLAIMS_NAMESPACE, Cluster, Name, USER, apply, certificate},
    latency::Latencies,
    options::Options,
    report::{Goal, NO_GOALS, Report, Unit},
    tls_client,
};

/// Group, version and resource of the server that only sends bytes.
const GROUP: &str = "bytes.sandbox-apiserver.example";
const VERSION: &str = "v1";
const RESOURCE: &str = "objects";
/// Name of its Service.
const NAME: &str = "bytes";
/// How much longer than its get ours may take. What kube-apiserver adds to both is most of either.
const AT_MOST: Goal = Goal::AtMost(1.15);

pub(crate) async fn measure(
    cluster: &Cluster,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let n_gets = options.gets.div_ceil(10);
    eprintln!(
        "{n_gets} gets and {} claims through kube-apiserver",
        options.claims
    );
    let names = cluster.names().await?;
    let mut rng = rand::rng();
    let mut next = || names.choose(&mut rng).map(Name::path);
    let any = next().context("there are no sandboxes")?;
    let object = cluster.client.get(&any).await?.body;
    let bytes = Registered::start(cluster, &object).await?;
    let client = connect(cluster).await?;

    let (mut gets, mut of_bytes) = (Latencies::default(), Latencies::default());
    // The first questions cost reviews and connections.
    for turn in 0..n_gets + 100 {
        let get = client
            .get(&next().context("there are no sandboxes")?)
            .await?;
        let get_of_bytes = client.get(&bytes.path).await?;
        if turn >= 100 {
            gets.add(get.latency);
            of_bytes.add(get_of_bytes.latency);
        }
    }
    let mut made = Latencies::default();
    for turn in 0..options.claims {
        let name = Name::of_claim(format!("through-{turn}"));
        made.add(claims::claim(&client, &name).await?.latency);
        client.delete(&name.path()).await?;
    }
    for (what, latencies) in [("get", &gets), ("claim", &made)] {
        let what = format!("{what} through kube-apiserver");
        report.latencies(&what, latencies, NO_GOALS, Some(&of_bytes));
        let [own, others] = [latencies, &of_bytes].map(|it| it.percentile(50).as_secs_f64());
        let what = format!("{what}, p50 beside a get of bytes");
        report.row(&what, own / others, Unit::Times).goal(AT_MOST);
    }
    bytes.forget(cluster).await;
    Ok(())
}

/// The user, who asks kube-apiserver over one connection.
async fn connect(cluster: &Cluster) -> anyhow::Result<Client> {
    let control_plane = &cluster.stage.control_plane;
    let url = control_plane.config_as(USER).cluster_url;
    let port = url.port_u16().context("kube-apiserver has a port")?;
    let pair = certificate(control_plane)?;
    let config = tls_client::config(&control_plane.ca(), Some(&pair), &["h2"]);
    Client::connect(port, config).await
}

/// The server that only sends bytes, as kube-apiserver knows it.
struct Registered {
    _server: Bare,
    path: String,
}

impl Registered {
    async fn start(cluster: &Cluster, object: &Bytes) -> anyhow::Result<Self> {
        let resource = json!({"name": RESOURCE, "singularName": "object", "namespaced": true, "kind": "Object", "verbs": ["get"]});
        let resources = json!({"kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": format!("{GROUP}/{VERSION}"), "resources": [resource]});
        let resources = resources.to_string();
        let files = [(VERSION, resources.as_bytes()), ("object", &object[..])];
        let server_name = format!("{NAME}.{NAMESPACE}.svc");
        let server = Bare::start("ceiling", &["localhost", &server_name], files).await?;
        let control_plane = &cluster.stage.control_plane;
        apply(control_plane, &registration(&server)).await;
        let api_service = format!("apiservice/{VERSION}.{GROUP}");
        let wait = [
            "wait",
            "--for=condition=Available",
            "--timeout=60s",
            &api_service,
        ];
        control_plane.kubectl().stdout(&wait).await;
        Ok(Self {
            _server: server,
            path: format!(
                "/apis/{GROUP}/{VERSION}/namespaces/{CLAIMS_NAMESPACE}/{RESOURCE}/object"
            ),
        })
    }

    /// An APIService without its server would hold up the end of every namespace.
    async fn forget(self, cluster: &Cluster) {
        let api_service = format!("{VERSION}.{GROUP}");
        let delete = ["delete", "apiservice", &api_service];
        cluster.stage.control_plane.kubectl().stdout(&delete).await;
    }
}

fn registration(server: &Bare) -> Value {
    let backend = Backend {
        group: GROUP,
        name: NAME,
        port: server.port,
        ca_bundle: &server.ca,
    };
    let rbac = "rbac.authorization.k8s.io";
    let role = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": NAME},
        "rules": [{"apiGroups": [GROUP], "resources": [RESOURCE], "verbs": ["get"]}]});
    let binding = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": NAME},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": NAME},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": USER}]});
    let items = [
        backend.service(),
        backend.api_service(VERSION, 100),
        role,
        binding,
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
