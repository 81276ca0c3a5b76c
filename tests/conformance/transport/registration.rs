//! What is registered with kube-apiserver, and how it looks after that.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    chart,
    conformance::{
        credentials::Door,
        relay::{Relay, Reply},
        subject::Subject,
    },
    stage::API,
};

/// The aggregator gives a health check so long.
const HEALTH_CHECK: Duration = Duration::from_secs(5);
/// Where the registrations are.
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const V1ALPHA1: &str = "/apis/agents.x-k8s.io/v1alpha1";

/// The shipped objects: with kubectl, and with helm.
fn shipped() -> [Vec<Value>; 2] {
    [chart::manifests(), chart::helm_template(&[])].map(|yaml| chart::documents(&yaml))
}

pub(super) fn api_services(objects: &[Value]) -> impl Iterator<Item = &Value> {
    objects
        .iter()
        .filter(|object| object["kind"] == "APIService")
}

/// The registration as kube-apiserver has it.
pub(super) async fn registration(subject: &Subject, version: &str) -> Value {
    let path = format!("{API_SERVICES}/{version}.agents.x-k8s.io");
    subject.proxied().get(&path).await.ok()
}

#[track_caller]
pub(super) fn is_available(api_service: &Value) {
    let conditions = api_service["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let available = conditions.find(|condition| condition["type"] == "Available");
    let available = available.expect("kube-apiserver has looked");
    assert_eq!(
        (&available["status"], &available["reason"]),
        (&json!("True"), &json!("Passed"))
    );
}

#[track_caller]
pub(super) fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut of_kind = objects.iter().filter(|object| object["kind"] == kind);
    let one = of_kind.next().expect(kind);
    assert!(of_kind.next().is_none(), "one {kind}");
    one
}

/// One node is down here; that none needs to be up is told by the server's own state, which the path is answered from.
pub(super) async fn c_005(subject: &Subject) {
    for version in ["v1beta1", "v1alpha1"] {
        is_available(&registration(subject, version).await);
    }
    let relay = Relay::start(subject).await;
    let mut server = subject.server_through(&relay, &[]);
    server.ready().await;
    let node = subject.own_node();
    subject.nodes().stop(node.index).await;
    relay.rule(|_| Reply::Silence);
    let front_proxy = subject.control_plane.front_proxy();
    let front_proxy = Door::of_server(&server).with_certificate(&front_proxy);
    let aggregator = [
        ("x-remote-user", "system:kube-aggregator"),
        ("x-remote-group", "system:masters"),
    ];
    for path in [API, V1ALPHA1] {
        let checks = (0..5).map(|_| front_proxy.send("GET", path, &aggregator, ""));
        let answers = timeout(HEALTH_CHECK, join_all(checks)).await;
        for answer in answers.expect("all are answered in time") {
            assert_eq!(answer.ok()["kind"], "APIResourceList");
        }
    }
    // Nobody was asked, since nobody would have answered.
    let stranger = server.client_as("walter");
    let asking = timeout(Duration::from_secs(1), stranger.get(API)).await;
    assert!(asking.is_err(), "others are asked about");
    subject.nodes().start(node.index).await;
}

/// The names of ports in the EndpointSlices are those of the Service; the Pod is ready once its probe passes.
pub(super) async fn c_006(subject: &Subject) {
    for objects in shipped() {
        let (service, deployment) = (one(&objects, "Service"), one(&objects, "Deployment"));
        let port = &service["spec"]["ports"][0];
        let template = &deployment["spec"]["template"];
        let selector = service["spec"]["selector"].as_object().unwrap();
        assert!(!selector.is_empty());
        for (label, value) in selector {
            assert_eq!(&template["metadata"]["labels"][label], value);
        }
        assert_eq!(
            deployment["metadata"]["namespace"],
            service["metadata"]["namespace"]
        );
        let container = &template["spec"]["containers"][0];
        let mut ports = container["ports"].as_array().unwrap().iter();
        let target = ports.find(|it| it["name"] == port["targetPort"]);
        let target = target.expect("the Service's port is one of the container");
        assert_eq!(target["containerPort"], secure_port(container));
        let asked = &container["readinessProbe"]["httpGet"];
        assert_eq!(
            (&asked["path"], &asked["scheme"]),
            (&json!("/readyz"), &json!("HTTPS"))
        );
        let at = &asked["port"];
        assert!(*at == target["name"] || *at == target["containerPort"]);
        let mut n_registered = 0;
        for api_service in api_services(&objects) {
            let target = &api_service["spec"]["service"];
            assert_eq!(target["name"], service["metadata"]["name"]);
            assert_eq!(target["namespace"], service["metadata"]["namespace"]);
            assert_eq!(target["port"], port["port"]);
            n_registered += 1;
        }
        assert_eq!(n_registered, 2);
        // kube-apiserver fills in what it would register, and finds nothing to object to.
        for (object, path) in [
            (
                service,
                format!("/api/v1/namespaces/{}/services", subject.namespace),
            ),
            (
                api_services(&objects).next().unwrap(),
                API_SERVICES.to_owned(),
            ),
        ] {
            let mut object = object.clone();
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            if object["kind"] == "Service" {
                object["metadata"]["namespace"] = subject.namespace.as_str().into();
            }
            let apply = format!("{path}/{name}?dryRun=All&fieldManager=shipped&force=true");
            let media_type = crate::conformance::client::APPLY;
            let applied = subject
                .proxied()
                .patch(media_type, &apply, &object)
                .await
                .ok();
            assert_eq!(applied["kind"], object["kind"]);
        }
    }
}

/// The port that the container's arguments let the server listen at.
fn secure_port(container: &Value) -> u16 {
    let mut args = container["args"].as_array().unwrap().iter();
    let port = args.find_map(|it| it.as_str()?.strip_prefix("--secure-port="));
    port.expect("it is told its port").parse().unwrap()
}

pub(super) async fn c_007(subject: &Subject) {
    for objects in shipped() {
        let mut priorities = std::collections::BTreeMap::new();
        for api_service in api_services(&objects) {
            let spec = &api_service["spec"];
            let version = spec["version"].as_str().unwrap();
            assert_eq!(spec["group"], "agents.x-k8s.io");
            let name = format!("{version}.agents.x-k8s.io");
            assert_eq!(api_service["metadata"]["name"], name.as_str());
            let minimum = spec["groupPriorityMinimum"].as_i64().unwrap();
            assert!((1..=20_000).contains(&minimum), "{minimum}");
            priorities.insert(
                version.to_owned(),
                spec["versionPriority"].as_i64().unwrap(),
            );
        }
        let [alpha, beta] = ["v1alpha1", "v1beta1"].map(|version| priorities[version]);
        assert!(0 < alpha && alpha < beta && beta <= 1_000, "{priorities:?}");
        assert_eq!(priorities.len(), 2);
    }
    // Users see what kube-apiserver computes of them, and the server says the same of itself.
    for client in subject.both_ways() {
        let group = client.get("/apis/agents.x-k8s.io").await.ok();
        assert_eq!(group["preferredVersion"]["version"], "v1beta1");
        let versions = group["versions"].as_array().unwrap().iter();
        let versions: Vec<_> = versions.map(|version| &version["version"]).collect();
        assert_eq!(versions, ["v1beta1", "v1alpha1"]);
        let groups = client.get("/apis").await.ok();
        let mut groups = groups["groups"].as_array().unwrap().iter();
        let listed = groups.find(|it| it["name"] == "agents.x-k8s.io").unwrap();
        assert_eq!(listed["versions"], group["versions"]);
    }
}

/// That a CRD takes an APIService over by this label, and by nothing else, is kube-apiserver's way. A CRD of this name is not put
/// into the cluster that other checks share.
pub(super) async fn c_008(subject: &Subject) {
    const LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";
    let live = [
        registration(subject, "v1beta1").await,
        registration(subject, "v1alpha1").await,
    ];
    for registered in &live {
        is_available(registered);
        assert_eq!(registered["spec"]["service"]["namespace"], "sandbox-system");
    }
    let shipped = shipped();
    let all = shipped.iter().flat_map(|objects| api_services(objects));
    for api_service in all.chain(&live) {
        assert_eq!(api_service["metadata"]["labels"].get(LABEL), None);
    }
    assert!(include_str!("../../../apiservice/README.md").contains(LABEL));
    assert!(
        include_str!("../../../README.md")
            .contains("what to do where the CRD of the same name is in the")
    );
}

pub(super) async fn c_014(subject: &Subject) {
    let client = subject.proxied();
    let asked = (0..50).map(|_| client.get(API));
    let answers = timeout(HEALTH_CHECK, join_all(asked)).await;
    for answer in answers.expect("all are answered in time") {
        let resources = answer.ok();
        assert_eq!(resources["kind"], "APIResourceList");
        assert_eq!(resources["groupVersion"], "agents.x-k8s.io/v1beta1");
    }
}
