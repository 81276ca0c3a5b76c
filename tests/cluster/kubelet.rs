//! What a kubelet does with a workload, as far as tests need it: the container's program runs on this machine, with the flags,
//! volumes and variables that its Pod template says, and as its ServiceAccount.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{control_plane::ControlPlane, process::Process, users::ADMIN};

const BINARY: &str = env!("CARGO_BIN_EXE_sandbox-apiserver");
/// Where each node's programs are reached.
const HOST_IP: &str = "127.0.0.1";

/// A Pod of a workload, which can be started more than once: its volumes stay.
#[derive(Debug)]
pub(crate) struct Pod {
    name: &'static str,
    directory: PathBuf,
    variables: Vec<String>,
    args: Vec<String>,
}

impl Pod {
    /// Makes a Pod ready on `node`. `replaced` are flags that a Pod has a network of its own for, and this machine one for all.
    pub(crate) async fn new(
        control_plane: &ControlPlane,
        name: &'static str,
        workload: &Value,
        node: Option<&str>,
        replaced: &[(&str, String)],
        directory: &Path,
    ) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let namespace = workload["metadata"]["namespace"].as_str().unwrap();
        let spec = &workload["spec"]["template"]["spec"];
        let container = &spec["containers"][0];
        let account = spec["serviceAccountName"].as_str().unwrap();
        let host = Host {
            control_plane,
            namespace,
            account,
            node,
        };
        for volume in items(&spec["volumes"]) {
            host.mount(volume, &directory.join(text(&volume["name"])))
                .await;
        }
        let kubeconfig = directory.join("kubeconfig");
        let token = host.token(&[]).await;
        std::fs::write(&kubeconfig, kubeconfig_of(control_plane, &token)).unwrap();
        let mut args: Vec<_> = items(&container["args"]).map(text).collect();
        for mount in items(&container["volumeMounts"]) {
            let here = directory.join(text(&mount["name"])).display().to_string();
            for arg in &mut args {
                *arg = arg.replace(&text(&mount["mountPath"]), &here);
            }
        }
        for (flag, value) in replaced {
            let prefix = format!("{flag}=");
            args.retain(|arg| !arg.starts_with(&prefix));
            args.push(format!("{prefix}{value}"));
        }
        args.push(format!("--kubeconfig={}", kubeconfig.display()));
        let variables = items(&container["env"]).map(|variable| host.variable(variable));
        Self {
            name,
            directory: directory.to_owned(),
            variables: variables.collect(),
            args,
        }
    }

    pub(crate) fn start(&self) -> Process {
        let args = self
            .variables
            .iter()
            .map(String::as_str)
            .chain([BINARY])
            .chain(self.args.iter().map(String::as_str));
        Process::start(self.name, Path::new("env"), args, &self.directory).unwrap()
    }
}

/// Where a Pod runs and as whom.
struct Host<'a> {
    control_plane: &'a ControlPlane,
    namespace: &'a str,
    account: &'a str,
    node: Option<&'a str>,
}

impl Host<'_> {
    /// A token of the ServiceAccount, which says on which node its Pod is.
    async fn token(&self, more: &[&str]) -> String {
        let in_namespace = format!("--namespace={}", self.namespace);
        let of_node = self
            .node
            .map(|node| format!("--bound-object-name={node}"))
            .into_iter()
            .flat_map(|node| ["--bound-object-kind=Node".to_owned(), node]);
        let of_node: Vec<_> = of_node.collect();
        let mut args = vec!["create", "token", self.account, &in_namespace];
        args.extend(of_node.iter().map(String::as_str));
        args.extend(more);
        let token = self.control_plane.kubectl().stdout(&args).await;
        token.trim_end().to_owned()
    }

    async fn mount(&self, volume: &Value, at: &Path) {
        std::fs::create_dir_all(at).unwrap();
        if let Some(secret) = volume.get("secret") {
            self.mount_secret(&text(&secret["secretName"]), at).await;
        }
        for source in items(&volume["projected"]["sources"]) {
            let token = &source["serviceAccountToken"];
            let audience = format!("--audience={}", text(&token["audience"]));
            let content = self.token(&[&audience]).await;
            std::fs::write(at.join(text(&token["path"])), content).unwrap();
        }
    }

    async fn mount_secret(&self, name: &str, at: &Path) {
        let in_namespace = format!("--namespace={}", self.namespace);
        let get = ["get", "secret", name, &in_namespace, "--output=json"];
        let secret = self.control_plane.kubectl().stdout(&get).await;
        let secret: Value = serde_json::from_str(&secret).unwrap();
        for (key, value) in secret["data"].as_object().unwrap() {
            let value = BASE64_STANDARD.decode(text(value)).unwrap();
            std::fs::write(at.join(key), value).unwrap();
        }
    }

    fn variable(&self, variable: &Value) -> String {
        let field = text(&variable["valueFrom"]["fieldRef"]["fieldPath"]);
        let value = match field.as_str() {
            "spec.nodeName" => self.node.unwrap(),
            "status.hostIP" => HOST_IP,
            field => panic!("{field} is not known here"),
        };
        format!("{}={value}", text(&variable["name"]))
    }
}

/// The way to kube-apiserver, which a Pod finds in its own files.
fn kubeconfig_of(control_plane: &ControlPlane, token: &str) -> String {
    let server = control_plane.config_as(ADMIN).cluster_url.to_string();
    let ca = BASE64_STANDARD.encode(control_plane.ca());
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    })
    .to_string()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
