//! The server's own CA and serving certificate, for installations that bring none.
//!
//! The CA, with its key, is a Secret in the server's namespace. What it issues is made by each process for itself and lives in
//! its memory: a key that is served is never stored, a restart is a renewal, and the Secret changes only with the CA. That the
//! CA's key is kept at all is so that the CA outlives the process: clients that come directly copy it into their configuration,
//! and a new one at each restart would leave them without. Who reads the Secret can be this server, no more and no less than
//! who reads a stored serving key.
//!
//! A CA is replaced at two thirds of its life, and stays in the bundle until it ends, so whatever it issued is trusted to its
//! last second. The order is what keeps clients from seeing a certificate that they cannot verify:
//!
//! 1. The Secret gets the new CA, beside the certificate of the old one, and signed by the old one as well: by that bridge a
//!    client that copied the old CA, and reads no ConfigMap, trusts what the new one issues until the old one ends.
//! 2. Both go into the `caBundle` of the APIServices and into a ConfigMap, while the old CA's certificate is still served.
//! 3. After a pause, in which every kube-apiserver hears of it, the new CA's certificate is served.
//!
//! The same order holds when the Secret is deleted or spoilt: the CA in service stays published until its successor serves. Who
//! deletes it wants to be rid of the CA, so that one is not trusted after that and has no bridge; beside one that is spoilt the
//! CA in service stays trusted until it ends.
//!
//! Only the holder of the Lease makes a CA or writes to the APIServices. Another process, which waits for the Lease and gets no
//! requests, serves by the Secret as it finds it. The writes of the Secret and of the APIServices have preconditions besides: a
//! Lease says nothing about a request that was sent before it was lost. That of the ConfigMap has none: by one that comes late it
//! is wrong until the holder's next look.

mod api_services;
mod authority;
mod bundle;
mod config_map;
mod error;
mod keeper;
mod kept;
mod lifetime;
mod metrics;
mod options;
mod secret;

pub use error::{Error, Result};
pub use keeper::Keeper;
pub use metrics::CertificateMetrics;
pub use options::Options;
