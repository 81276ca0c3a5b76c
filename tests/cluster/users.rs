//! Users of the test control plane: who has a client certificate, and the kubeconfig that goes with it.

use std::{collections::HashSet, fs, path::PathBuf};

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use serde_json::json;

use crate::pki::{Authority, Certificate};

/// The cluster's administrator, a member of `system:masters`.
pub(crate) const ADMIN: &str = "admin";

/// Issues certificates and kubeconfigs on demand, once for each user.
pub(crate) struct Users {
    dir: PathBuf,
    server: String,
    authority: Authority,
    issued: Mutex<HashSet<String>>,
}

impl Users {
    pub(crate) fn new(dir: PathBuf, server: String, authority: Authority) -> Self {
        Self {
            dir,
            server,
            authority,
            issued: Mutex::default(),
        }
    }

    /// The kubeconfig of `user`, in JSON, which every reader of YAML takes.
    pub(crate) fn kubeconfig(&self, user: &str) -> Result<PathBuf> {
        let kubeconfig = self.path(user, "kubeconfig");
        // Held while files are written: nobody reads half a file.
        let mut issued = self.issued.lock();
        if issued.contains(user) {
            return Ok(kubeconfig);
        }
        let group = (user == ADMIN).then_some("system:masters");
        let Certificate {
            certificate_pem,
            key_pem,
        } = self.authority.client(user, group)?;
        fs::write(self.path(user, "crt"), certificate_pem)?;
        fs::write(self.path(user, "key"), key_pem)?;
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {
                "server": self.server,
                "certificate-authority": self.dir.join("ca.crt"),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate": self.path(user, "crt"),
                "client-key": self.path(user, "key"),
            }}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        });
        fs::write(&kubeconfig, content.to_string())?;
        issued.insert(user.to_owned());
        Ok(kubeconfig)
    }

    /// The CA of kube-apiserver's own certificate and of the users', PEM.
    pub(crate) fn ca(&self) -> String {
        self.authority.pem()
    }

    /// A client of `user`. Its connections belong to the runtime it is made in.
    pub(crate) fn client(&self, user: &str) -> Result<kube::Client> {
        kube::Client::try_from(self.config(user)?).with_context(|| format!("no client for {user}"))
    }

    /// The configuration of a client of `user`.
    pub(crate) fn config(&self, user: &str) -> Result<kube::Config> {
        self.kubeconfig(user)?;
        let mut config = kube::Config::new(self.server.parse()?);
        config.root_cert = Some(vec![self.authority.der()]);
        let auth = &mut config.auth_info;
        auth.client_certificate = Some(self.path(user, "crt").display().to_string());
        auth.client_key = Some(self.path(user, "key").display().to_string());
        Ok(config)
    }

    fn path(&self, user: &str, extension: &str) -> PathBuf {
        self.dir.join(format!("{user}.{extension}"))
    }
}
