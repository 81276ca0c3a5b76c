//! A server for one check: a process of the built binary over the stage's nodes, which kube-apiserver does not know of.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};

use super::{
    client::{Client, SOON},
    stub::Stub,
};
use crate::{
    caller::Caller,
    components::free_port,
    control_plane::ControlPlane,
    pki::Authority,
    process::{Directory, Process},
    stage::{self, StageOptions},
    users::ADMIN,
};

/// A process with files of its own, or the stub.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    /// The CA of its certificate, PEM.
    pub(super) ca: String,
    control_plane: &'static ControlPlane,
    running: Option<Running>,
}

/// The process. Its flags name files of its directory: `tls.crt`, `tls.key` and `token`.
pub(super) struct Running {
    // Dropped in order: the process ends before its directory is gone.
    pub(super) process: Process,
    pub(super) directory: Directory,
    pub(super) authority: Authority,
}

impl Server {
    /// Starts `serve` as `user` with these flags beside the usual ones, and does not wait for it. Its Lease is in `namespace`.
    pub(super) fn start(
        control_plane: &'static ControlPlane,
        user: &str,
        namespace: &str,
        flags: &[&str],
    ) -> Self {
        let kubeconfig = control_plane.kubeconfig_as(user);
        Self::start_with(control_plane, &kubeconfig, namespace, flags)
    }

    /// As [`Self::start`], for a server that reaches kube-apiserver by this configuration.
    pub(super) fn start_with(
        control_plane: &'static ControlPlane,
        kubeconfig: &Path,
        namespace: &str,
        flags: &[&str],
    ) -> Self {
        let directory = Directory::create("conformance-").unwrap();
        let authority = Authority::new("conformance").unwrap();
        stage::write_files(&authority, directory.path());
        let mut serve_flags = vec!["--claim-controller=false".to_owned()];
        serve_flags.extend(flags.iter().map(ToString::to_string));
        let options = StageOptions {
            lease_namespace: namespace.to_owned(),
            serve_flags,
            ..StageOptions::default()
        };
        let port = free_port().unwrap();
        let process = stage::start_serve(&options, kubeconfig, port, directory.path());
        Self {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            ca: authority.pem(),
            control_plane,
            running: Some(Running {
                process,
                directory,
                authority,
            }),
        }
    }

    pub(super) fn stub(control_plane: &'static ControlPlane, stub: &Stub) -> Self {
        Self {
            address: stub.address,
            ca: stub.authority.pem(),
            control_plane,
            running: None,
        }
    }

    /// Waits until it says that it is ready.
    pub(super) async fn ready(&mut self) {
        let config = self.config(ADMIN);
        if let Some(running) = &mut self.running {
            stage::wait_until_ready(&config, &mut running.process).await;
        }
    }

    /// Asks it to end, and waits until it has and its Lease is free.
    pub(super) async fn end(mut self) {
        if let Some(Running { process, .. }) = &mut self.running {
            process.terminate();
            let deadline = Instant::now() + SOON;
            while process.exited().unwrap().is_none() {
                assert!(Instant::now() < deadline, "it ends in time");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Waits until it answers at all.
    pub(super) async fn listens(&self) {
        let caller = Caller::new(self.config(ADMIN));
        stage::eventually(SOON, "it listens", async || {
            caller.try_get("/livez").await.is_some()
        })
        .await;
    }

    /// A user with a client certificate, at its port.
    pub(super) fn client_as(&self, user: &str) -> Client {
        Client::new(self.config(user), false)
    }

    pub(super) fn client(&self) -> Client {
        self.client_as(ADMIN)
    }

    /// Its process.
    ///
    /// # Panics
    /// For the stub, which has none.
    #[track_caller]
    pub(super) fn running(&mut self) -> &mut Running {
        self.running.as_mut().expect("a server with a process")
    }

    fn config(&self, user: &str) -> kube::Config {
        let config = self.control_plane.config_as(user);
        stage::pointed_at(config, &self.ca, self.address.port())
    }
}
