//! The components of the test control plane, each with its flags, all on 127.0.0.1.

use std::{
    env,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use rcgen::KeyPair;

use crate::{pki::Authority, process::Process};

/// Issuer and audience of ServiceAccount tokens.
const SERVICE_ACCOUNT_ISSUER: &str = "https://kubernetes.default.svc";

/// The common name that identity headers are believed from.
const FRONT_PROXY: &str = "front-proxy-client";

/// Those that ask an aggregated API (namespace deletion, garbage collection, quota), those that ServiceAccounts need,
/// and the one that merges `aggregate-to-*` roles. The others would only cost start-up time.
const CONTROLLERS: &[&str] = &[
    "namespace-controller",
    "garbage-collector-controller",
    "resourcequota-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "horizontal-pod-autoscaler-controller",
];

/// Where the binaries are and where the components keep their files.
pub(crate) struct Installation<'a> {
    pub(crate) binaries: &'a Path,
    pub(crate) dir: &'a Path,
}

impl Installation<'_> {
    /// Writes the key material that the components share: the CA that users are known by, the one that the aggregation
    /// layer's own client certificate comes from, and the key of ServiceAccount tokens.
    pub(crate) fn write_keys(&self, authority: &Authority) -> Result<()> {
        let front_proxy_authority = Authority::new("kubernetes-front-proxy-ca")?;
        let serving = authority.serving(&["127.0.0.1", "localhost", "kubernetes.default.svc"])?;
        let front_proxy = front_proxy_authority.client(FRONT_PROXY, None)?;
        let service_account = KeyPair::generate()?;
        for (name, content) in [
            ("ca.crt", authority.pem()),
            ("apiserver.crt", serving.certificate_pem),
            ("apiserver.key", serving.key_pem),
            ("front-proxy-ca.crt", front_proxy_authority.pem()),
            ("front-proxy-client.crt", front_proxy.certificate_pem),
            ("front-proxy-client.key", front_proxy.key_pem),
            ("service-account.pub", service_account.public_key_pem()),
            ("service-account.key", service_account.serialize_pem()),
        ] {
            std::fs::write(self.dir.join(name), content)?;
        }
        Ok(())
    }

    /// Starts etcd with its client API at `endpoint`.
    pub(crate) fn start_etcd(&self, endpoint: &str) -> Result<Process> {
        let peer = format!("http://127.0.0.1:{}", free_port()?);
        let flags = [
            "--data-dir=etcd",
            &format!("--listen-client-urls={endpoint}"),
            &format!("--advertise-client-urls={endpoint}"),
            &format!("--listen-peer-urls={peer}"),
            &format!("--initial-advertise-peer-urls={peer}"),
            &format!("--initial-cluster=default={peer}"),
            // The data is thrown away, so nothing is gained by waiting for the disk.
            "--unsafe-no-fsync",
        ];
        self.start("etcd", &flags)
    }

    /// Starts kube-apiserver with RBAC and the aggregation layer. It waits for etcd by itself.
    pub(crate) fn start_apiserver(&self, port: u16, etcd: &str) -> Result<Process> {
        let flags = [
            &format!("--etcd-servers={etcd}"),
            &format!("--secure-port={port}"),
            "--bind-address=127.0.0.1",
            // Nobody else is told the address. Without these two, a machine that has no default route fails to find one.
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--tls-cert-file=apiserver.crt",
            "--tls-private-key-file=apiserver.key",
            "--client-ca-file=ca.crt",
            &format!("--service-account-issuer={SERVICE_ACCOUNT_ISSUER}"),
            "--service-account-key-file=service-account.pub",
            "--service-account-signing-key-file=service-account.key",
            "--authorization-mode=Node,RBAC",
            "--requestheader-client-ca-file=front-proxy-ca.crt",
            &format!("--requestheader-allowed-names={FRONT_PROXY}"),
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--proxy-client-cert-file=front-proxy-client.crt",
            "--proxy-client-key-file=front-proxy-client.key",
        ];
        self.start("kube-apiserver", &flags)
    }

    /// Starts kube-controller-manager. It gives up when kube-apiserver does not answer for 10 s.
    pub(crate) fn start_controller_manager(&self, kubeconfig: &Path) -> Result<Process> {
        let flags = [
            &format!("--kubeconfig={}", kubeconfig.display()),
            &format!("--controllers={}", CONTROLLERS.join(",")),
            "--leader-elect=false",
            // Each controller under its own ServiceAccount and with its own RBAC, as clusters are set up.
            "--use-service-account-credentials",
            "--service-account-private-key-file=service-account.key",
            "--root-ca-file=ca.crt",
            "--horizontal-pod-autoscaler-sync-period=1s",
            // Nobody asks it anything.
            "--secure-port=0",
        ];
        self.start("kube-controller-manager", &flags)
    }

    fn start(&self, name: &'static str, flags: &[&str]) -> Result<Process> {
        Process::start(name, &self.binaries.join(name), flags, self.dir)
            .with_context(|| format!("{name} does not start"))
    }
}

/// The directory that holds the binaries.
pub(crate) fn binaries() -> Result<PathBuf> {
    let hint = "run the tests with `hack/test`, which builds the control plane and sets KUBEBUILDER_ASSETS";
    let dir = env::var_os("KUBEBUILDER_ASSETS")
        .map(PathBuf::from)
        .with_context(|| format!("KUBEBUILDER_ASSETS is not set: {hint}"))?;
    for binary in [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kubectl",
    ] {
        ensure!(
            dir.join(binary).is_file(),
            "KUBEBUILDER_ASSETS is {}, which has no {binary}: {hint}",
            dir.display()
        );
    }
    // Relative to the package, where Cargo starts tests; the children start elsewhere.
    Ok(dir.canonicalize()?)
}

/// A port that nothing listens on.
///
/// From below the range that kernels take ephemeral ports from, so that no outgoing connection can hold the port when
/// the component binds it a moment later.
pub(crate) fn free_port() -> Result<u16> {
    for _ in 0..100 {
        let port = rand::random_range(20_000..30_000);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("found no free port in 100 tries")
}
