//! Who the agent is: its node, where it is reached, and the certificate it is known by.

use std::{fs, path::Path, sync::Arc};

use rustls_pki_types::{CertificateDer, pem::PemObject};

use super::{Error, Result};
use crate::{
    api::{AgentEndpoint, NodeAddress, NodeName},
    feed::CertificatePin,
    serving::{CertificateAuthority, PemPair, TlsMaterial, write_private},
};

const FILE: &str = "identity.pem";

/// Who the agent is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The node's name.
    pub node: NodeName,
    /// Where the server reaches the node's daemon.
    pub daemon_address: NodeAddress,
    /// Where the server reaches the agent.
    pub agent_address: NodeAddress,
    pub(super) pair: PemPair,
    pub(super) pin: CertificatePin,
}

impl Identity {
    /// An agent whose certificate lies in `state_dir`, and is made there the first time: it stays the same over a restart, so
    /// that the published inventory stays true.
    ///
    /// # Errors
    /// [`Error::State`] when the file cannot be read or written, [`Error::Certificate`] when it holds no certificate and key.
    pub fn load(
        node: NodeName,
        daemon_address: NodeAddress,
        agent_address: NodeAddress,
        state_dir: &Path,
    ) -> Result<Self> {
        let path = state_dir.join(FILE);
        let pem = match fs::read_to_string(&path) {
            Ok(pem) => pem,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let pem = make(&node)?;
                write_private(&path, &pem).map_err(|source| Error::state(&path, source))?;
                pem
            }
            Err(source) => return Err(Error::state(&path, source)),
        };
        let pin = CertificateDer::from_pem_slice(pem.as_bytes())
            .map(|certificate| CertificatePin::of(&certificate))
            .map_err(|error| Error::state(&path, std::io::Error::other(error)))?;
        // One file for both: each reader takes the blocks of its own kind.
        let pair = PemPair {
            certificate: pem.clone(),
            private_key: pem,
        };
        Ok(Self {
            node,
            daemon_address,
            agent_address,
            pair,
            pin,
        })
    }

    /// What the inventory says of the agent.
    pub fn endpoint(&self) -> AgentEndpoint {
        AgentEndpoint {
            address: self.agent_address.authority(),
            certificate_sha256: self.pin.to_string(),
        }
    }

    pub(super) fn tls(&self) -> Result<Arc<TlsMaterial>> {
        let material = TlsMaterial::from_pem(&self.pair);
        material.map(Arc::new).map_err(certificate_error)
    }
}

fn make(node: &NodeName) -> Result<String> {
    let name = format!("sandbox-agent {node}");
    let authority = CertificateAuthority::new(&name).map_err(certificate_error)?;
    let pair = authority
        .server_certificate(&["sandbox-agent"])
        .map_err(certificate_error)?;
    Ok(pair.certificate + &pair.private_key)
}

fn certificate_error(error: crate::serving::Error) -> Error {
    Error::Certificate(Arc::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_keeps_the_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let address: NodeAddress = "10.0.0.1:9443".parse().unwrap();
        let load = || Identity::load("n1".into(), address.clone(), address.clone(), dir.path());
        let first = load().unwrap();
        first.tls().unwrap();
        assert_eq!(load().unwrap().endpoint(), first.endpoint());
        fs::write(dir.path().join(FILE), "nothing").unwrap();
        assert!(matches!(load(), Err(Error::State { .. })));
    }
}
