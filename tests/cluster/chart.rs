//! `apiservice/` and the chart install the same objects, and kube-apiserver takes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    control_plane::{self, ControlPlane},
    users::ADMIN,
};

/// Namespace of `apiservice/`.
const NAMESPACE: &str = "sandbox-system";
const RELEASE: &str = "sandbox-apiserver";

/// Everything is validated, and nothing is left behind.
const DRY_RUN: [&str; 3] = ["apply", "--dry-run=server", "--validate=strict"];

/// What makes an object one of its own: kind, namespace and name.
type Key = (String, Option<String>, String);

#[test]
fn chart_renders_what_the_manifests_say() {
    let rendered = objects(&helm_template(&[]));
    let mut manifests = objects(&manifests());
    // Helm makes the namespace by itself.
    manifests.remove(&key("Namespace", None, NAMESPACE));

    let keys = |objects: &BTreeMap<Key, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&rendered), keys(&manifests));
    for (key, manifest) in &manifests {
        let rendered = &rendered[key];
        assert!(
            rendered == manifest,
            "{key:?}: the chart renders\n{rendered:#}\nand apiservice/ has\n{manifest:#}"
        );
    }
}

#[test]
fn chart_passes_lint() {
    helm(&["lint", "--strict", &chart()]);
}

#[test]
fn chart_refuses_a_value_that_it_does_not_know() {
    let output = helm_output(&["template", &chart(), "--set=replicas=2"]);

    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("replicas"), "{stderr}");
}

#[test]
fn the_server_may_write_the_ca_bundle_of_every_api_service_and_to_no_other() {
    let objects = objects_as_they_are(&helm_template(&[]));
    let registered: BTreeSet<&str> = objects
        .keys()
        .filter(|(kind, ..)| kind == "APIService")
        .map(|(_, _, name)| name.as_str())
        .collect();
    assert!(!registered.is_empty());

    let role = &objects[&key("ClusterRole", None, "sandbox-apiserver")];
    let rules = role["rules"].as_array().into_iter().flatten();
    let rules: Vec<_> = rules
        .filter(|rule| rule["resources"] == json!(["apiservices"]))
        .collect();
    let [rule] = rules[..] else {
        panic!("{rules:?}");
    };
    let names = rule["resourceNames"].as_array().into_iter().flatten();
    let names: BTreeSet<&str> = names.filter_map(Value::as_str).collect();
    assert_eq!(names, registered);
}

#[test]
fn with_an_own_certificate_the_server_has_no_right_to_make_one() {
    let (own, made) = ("--set=tls.existingSecret=mine", "--set=tls.existingSecret=");
    for (flag, expected) in [(own, false), (made, true)] {
        let objects = objects_as_they_are(&helm_template(&[flag]));
        let roles = [
            &objects[&key("ClusterRole", None, "sandbox-apiserver")],
            &objects[&key("Role", Some(NAMESPACE), "sandbox-apiserver")],
        ];
        for (role, resource) in roles.into_iter().zip(["apiservices", "secrets"]) {
            let rules = role["rules"].as_array().into_iter().flatten();
            let found = rules
                .filter(|rule| rule["resources"] == json!([resource]))
                .count();
            assert_eq!(found > 0, expected, "{flag}: {resource}");
        }
        let args = server_args(&objects);
        let has_files = args.iter().any(|arg| arg.starts_with("--tls-cert-file"));
        assert_eq!(has_files, !expected, "{args:?}");
    }
}

/// That the chart says why it renders nothing with these flags, and that it does once the certificate is the operator's.
#[track_caller]
fn check_needs_own_certificate(flags: &[&str], expected: &str) {
    let chart = chart();
    let template = [&["template", &chart][..], flags].concat();
    let output = helm_output(&template);

    assert!(!output.status.success(), "{flags:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(expected), "{stderr}");
    helm(&[&template[..], &["--set=tls.existingSecret=mine"]].concat());
}

#[test]
fn a_ca_bundle_without_its_certificate_is_refused() {
    check_needs_own_certificate(&["--set=tls.caBundle=PEM"], "tls.existingSecret");
}

#[test]
fn a_second_writer_of_the_ca_bundle_is_refused() {
    let annotation = r"--set=apiService.annotations.cert-manager\.io/inject-ca-from=a/b";
    check_needs_own_certificate(&[annotation], "cert-manager.io/inject-ca-from");
}

/// Who may create a Secret there may have one made that holds the token of any of its ServiceAccounts.
#[test]
fn kube_system_is_refused_where_the_server_would_have_to_create_a_secret_in_it() {
    check_needs_own_certificate(&["--namespace=kube-system"], "kube-system");
}

#[test]
fn a_name_that_no_client_can_ask_for_is_refused() {
    for name in ["*.x.example", "x.example:443", "https://x.example", "[::1]"] {
        // As JSON, because an asterisk and brackets mean something to `--set`.
        let flag = format!("--set-json=tls.extraNames=[{name:?}]");
        let output = helm_output(&["template", &chart(), &flag]);

        assert!(!output.status.success(), "{name}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("extraNames"), "{stderr}");
    }
}

#[test]
fn an_own_certificate_takes_the_place_of_the_made_one() {
    let rendered = helm_template(&["--set=tls.existingSecret=mine,tls.caBundle=PEM"]);
    let objects = objects_as_they_are(&rendered);

    assert!(!objects.keys().any(|(kind, ..)| kind == "Secret"));
    let deployment = &objects[&key("Deployment", Some(NAMESPACE), "sandbox-apiserver")];
    let volumes = &deployment["spec"]["template"]["spec"]["volumes"];
    assert_eq!(volumes[0]["secret"]["secretName"], "mine");
    let api_service = &objects[&key("APIService", None, "v1beta1.agents.x-k8s.io")];
    // "PEM" in base64.
    assert_eq!(api_service["spec"]["caBundle"], "UEVN");
}

#[test]
fn values_reach_the_flags_of_the_server() {
    let rendered = helm_template(&[
        "--set=nodeAddressCIDRs={10.0.0.0/8,192.168.0.0/16}",
        "--set=warmPoolDriver=true",
        "--set=extraArgs={--v=2}",
        "--set=tls.certificateDuration=24h,tls.caDuration=1h30m",
        "--set=tls.extraNames={sandboxes.example,192.0.2.1,2001:db8::1}",
    ]);
    let objects = objects_as_they_are(&rendered);

    let args = server_args(&objects);
    for expected in [
        "--node-address-cidrs=10.0.0.0/8,192.168.0.0/16",
        "--warm-pool-driver=true",
        "--v=2",
        "--tls-certificate-duration=24h",
        "--tls-ca-duration=1h30m",
        "--tls-names=sandboxes.example,192.0.2.1,2001:db8::1",
    ] {
        assert!(
            args.iter().any(|arg| arg == expected),
            "{expected} is not in {args:?}"
        );
    }
}

#[test]
fn flags_of_the_manifests_are_those_of_the_binary() {
    let objects = objects(&manifests());
    let agent = key("DaemonSet", Some("sandbox-agents"), "sandbox-agent");
    for args in [server_args(&objects), args_of(&objects[&agent])] {
        // Help comes only if everything before it is understood.
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_sandbox-apiserver"))
            .args(args)
            .arg("--help")
            .output()
            .unwrap();

        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
    }
}

#[test]
fn without_agents_the_server_is_told_of_none() {
    let objects = objects_as_they_are(&helm_template(&["--set=agent.enabled=false"]));

    assert!(
        !objects
            .keys()
            .any(|(_, _, name)| name.starts_with("sandbox-agent"))
    );
    let args = server_args(&objects);
    assert!(
        !args.iter().any(|arg| arg.starts_with("--agent-token-file")),
        "{args:?}"
    );
}

#[test]
fn chart_brings_the_custom_resource_definitions() {
    let with = objects_as_they_are(&helm_template(&["--include-crds"]));
    let without = objects_as_they_are(&helm_template(&[]));

    let brought: Vec<&str> = with
        .keys()
        .filter(|key| !without.contains_key(key))
        .map(|(_, _, name)| name.as_str())
        .collect();
    assert_eq!(
        brought,
        [
            "nodeinventories.extensions.agents.x-k8s.io",
            "sandboxclaims.extensions.agents.x-k8s.io",
            "sandboxtemplates.extensions.agents.x-k8s.io",
            "sandboxwarmpools.extensions.agents.x-k8s.io",
        ]
    );
}

#[tokio::test]
async fn kube_apiserver_takes_every_manifest_and_all_that_the_chart_renders() {
    let control_plane = control_plane::shared();
    let kubectl = control_plane.kubectl();
    let manifests = package().join("apiservice");
    // Another test's registration has the same names.
    let _turn = control_plane.api_service.lock().await;
    let namespace = manifests.join("00-namespace.yaml").display().to_string();
    // For real, because a dry run leaves nothing behind that the other objects could be in.
    kubectl.stdout(&["apply", "--filename", &namespace]).await;

    let (all, from) = (manifests.display().to_string(), "--filename");
    let of_manifests = kubectl.run(&[&DRY_RUN[..], &[from, &all]].concat()).await;
    let rendered = helm_template(&[]);
    let own =
        helm_template(&["--set=tls.existingSecret=mine,tls.caBundle=PEM,agent.enabled=false"]);
    let from_input = [&DRY_RUN[..], &["--filename=-"]].concat();
    let of_chart = kubectl.run_with_input(&from_input, &rendered).await;
    let of_own = kubectl.run_with_input(&from_input, &own).await;

    for applied in [of_manifests, of_chart, of_own] {
        // Anything on standard error is a warning: of Pod Security, of a deprecated or of an unknown field. That another test
        // made the same objects in another way is none.
        let warnings = String::from_utf8_lossy(&applied.stderr);
        let mut warnings = warnings
            .lines()
            .filter(|line| !line.contains("last-applied-configuration"));
        assert_eq!(warnings.next(), None);
        assert!(applied.status.success());
    }
}

/// What the README says, at a real kube-apiserver. No kubelet runs what is installed, so that the server that it registers is never
/// there: helm has to come to its end all the same.
#[tokio::test]
async fn helm_installs_changes_and_takes_away() {
    let control_plane = ControlPlane::own();
    let kubectl = control_plane.kubectl();
    let (chart, kubeconfig) = (chart(), control_plane.kubeconfig_as(ADMIN));
    let cluster = format!("--kubeconfig={}", kubeconfig.display());
    let here = format!("--namespace={NAMESPACE}");
    let release = [RELEASE, &cluster, &here];
    let with = |first: &str, more: &[&str]| helm(&[&[first], &release[..], more].concat());

    let notes = with("install", &[&chart, "--create-namespace"]);
    assert!(notes.contains("kubectl get sandboxes"), "{notes}");
    let rendered: Vec<_> = objects_as_they_are(&helm_template(&[]))
        .into_keys()
        .collect();
    let missing = async || {
        let mut missing = Vec::new();
        for (kind, namespace, name) in &rendered {
            let namespace = format!("--namespace={}", namespace.as_deref().unwrap_or_default());
            let get = ["get", kind, name, &namespace];
            if !kubectl.run(&get).await.status.success() {
                missing.push(name);
            }
        }
        missing
    };
    assert_eq!(missing().await, Vec::<&String>::new());

    let driver = [
        "get",
        "deployment",
        RELEASE,
        &here,
        "--output=jsonpath={.spec.template.spec.containers[0].args}",
    ];
    assert!(
        !kubectl
            .stdout(&driver)
            .await
            .contains("--warm-pool-driver=true")
    );
    with("upgrade", &[&chart, "--set=warmPoolDriver=true"]);
    assert!(
        kubectl
            .stdout(&driver)
            .await
            .contains("--warm-pool-driver=true")
    );

    with("uninstall", &[]);
    let gone = missing().await;
    let left: Vec<_> = rendered
        .iter()
        .filter(|(.., name)| !gone.contains(&name))
        .collect();
    // It ends when its controller has emptied it.
    assert_eq!(left, [&key("Namespace", None, "sandbox-agents")]);
    // With them would go what users wrote.
    kubectl
        .stdout(&[
            "get",
            "customresourcedefinition",
            "nodeinventories.extensions.agents.x-k8s.io",
        ])
        .await;
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn chart() -> String {
    package()
        .join("charts/sandbox-apiserver")
        .display()
        .to_string()
}

/// All files of `apiservice/` as one stream.
pub(crate) fn manifests() -> String {
    let mut files: Vec<PathBuf> = std::fs::read_dir(package().join("apiservice"))
        .expect("apiservice/ is a directory")
        .map(|entry| entry.expect("apiservice/ is readable").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    let contents: Vec<String> = files
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("a manifest is readable"))
        .collect();
    contents.join("\n---\n")
}

pub(crate) fn helm_template(flags: &[&str]) -> String {
    let chart = chart();
    let mut args = vec![
        "template",
        "sandbox-apiserver",
        &chart,
        "--namespace",
        NAMESPACE,
    ];
    args.extend(flags);
    helm(&args)
}

fn helm(args: &[&str]) -> String {
    let output = helm_output(args);
    assert!(
        output.status.success(),
        "`helm {}` ended with {}\n{}{}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("helm prints UTF-8")
}

fn helm_output(args: &[&str]) -> std::process::Output {
    let helm = env::var_os("HELM")
        .expect("HELM is not set: run the tests with `hack/test`, which builds helm and sets it");
    std::process::Command::new(helm)
        .args(args)
        .output()
        .expect("helm starts")
}

fn key(kind: &str, namespace: Option<&str>, name: &str) -> Key {
    (
        kind.to_owned(),
        namespace.map(str::to_owned),
        name.to_owned(),
    )
}

/// The arguments that the Deployment starts the server with.
fn server_args(objects: &BTreeMap<Key, Value>) -> Vec<String> {
    args_of(&objects[&key("Deployment", Some(NAMESPACE), "sandbox-apiserver")])
}

/// The arguments of the container that a workload runs.
pub(crate) fn args_of(workload: &Value) -> Vec<String> {
    let args = &workload["spec"]["template"]["spec"]["containers"][0]["args"];
    args.as_array()
        .into_iter()
        .flatten()
        .map(|arg| arg.as_str().expect("an argument is a string").to_owned())
        .collect()
}

/// The objects of a YAML stream without what tells one installation from another.
fn objects(yaml: &str) -> BTreeMap<Key, Value> {
    let mut objects = objects_as_they_are(yaml);
    for object in objects.values_mut() {
        if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
            labels.remove("helm.sh/chart");
            labels.remove("app.kubernetes.io/managed-by");
        }
    }
    objects
}

fn objects_as_they_are(yaml: &str) -> BTreeMap<Key, Value> {
    let mut objects = BTreeMap::new();
    for object in documents(yaml) {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let metadata = &object["metadata"];
        let key = (
            text(&object["kind"]).expect("an object has a kind"),
            text(&metadata["namespace"]),
            text(&metadata["name"]).expect("an object has a name"),
        );
        assert!(!objects.contains_key(&key), "{key:?} is there twice");
        objects.insert(key, object);
    }
    objects
}

pub(crate) fn documents(yaml: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("the YAML is well-formed");
    // Between two separators there may be nothing but comments.
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect()
}
