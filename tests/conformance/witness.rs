//! A server whose questions about its callers are seen, and so whom it takes them for.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use sandbox_apiserver::serving::{CertificateAuthority, PemPair};
use serde_json::{Value, json};

use super::{
    client::Client,
    credentials::{Door, certificate},
    relay::Relay,
    server::Server,
    subject::Subject,
};
use crate::stage::eventually;

const SOON: Duration = Duration::from_secs(15);
/// The name that identity headers are believed from.
const PROXY: &str = "front-proxy-client";

/// A server of its own that trusts CAs of its own.
pub(super) struct Witness {
    // Dropped in order: a client goes before its server.
    pub(super) server: Server,
    pub(super) relay: Relay,
    pub(super) door: Door,
    pub(super) proxy_ca: CertificateAuthority,
    pub(super) client_ca: CertificateAuthority,
    n_asked: AtomicUsize,
}

impl Witness {
    pub(super) async fn start(subject: &Subject) -> Self {
        let [proxy_ca, client_ca] =
            ["proxy", "client"].map(|name| CertificateAuthority::new(name).unwrap());
        let relay = Relay::start(subject).await;
        relay.trust(subject, &trust(&proxy_ca, &client_ca)).await;
        let mut server = subject.server_through(&relay, &[]);
        server.ready().await;
        Self {
            door: Door::of_server(&server),
            server,
            relay,
            proxy_ca,
            client_ca,
            n_asked: AtomicUsize::new(0),
        }
    }

    /// What the server trusts.
    pub(super) fn trust(&self) -> Value {
        trust(&self.proxy_ca, &self.client_ca)
    }

    /// The front proxy's certificate.
    pub(super) fn proxy(&self) -> PemPair {
        certificate(&self.proxy_ca, PROXY, None)
    }

    /// A user with a certificate, in no group but that of all users.
    pub(super) fn user(&self, name: &str) -> Client {
        let pair = certificate(&self.client_ca, name, None);
        self.door.with_certificate(&pair)
    }

    /// Whom the server takes the caller for, in the words of a SubjectAccessReview; `None` for 401.
    pub(super) async fn who(&self, client: &Client, headers: &[(&str, &str)]) -> Option<Value> {
        let n = self.n_asked.fetch_add(1, Ordering::Relaxed);
        let path = format!("/who/{n}");
        let answer = client.send("GET", &path, headers, "").await;
        if answer.status == 401 {
            answer.expect(401, "Unauthorized");
            return None;
        }
        let asked = self.relay.asked().into_iter();
        let mut specs = asked.map(|question| question.body["spec"].clone());
        let about = specs.find(|spec| spec["nonResourceAttributes"]["path"] == path.as_str());
        Some(about.expect("the server asks what its caller may do"))
    }

    /// The name that the server takes the caller for; empty for 401.
    pub(super) async fn name(&self, client: &Client, headers: &[(&str, &str)]) -> String {
        let who = self.who(client, headers).await.unwrap_or_default();
        who["user"].as_str().unwrap_or_default().to_owned()
    }

    /// Puts other CAs or headers in force, and returns when the caller is taken for `name`.
    pub(super) async fn trust_until(
        &self,
        subject: &Subject,
        data: &Value,
        client: &Client,
        (headers, name): (&[(&str, &str)], &str),
    ) {
        self.relay.trust(subject, data).await;
        eventually(SOON, "the change is in force", async || {
            self.name(client, headers).await == name
        })
        .await;
    }
}

/// What kube-apiserver publishes, for other CAs.
fn trust(proxy_ca: &CertificateAuthority, client_ca: &CertificateAuthority) -> Value {
    json!({
        "client-ca-file": client_ca.certificate(),
        "requestheader-client-ca-file": proxy_ca.certificate(),
        "requestheader-allowed-names": json!([PROXY]).to_string(),
        "requestheader-username-headers": r#"["X-Remote-User"]"#,
        "requestheader-group-headers": r#"["X-Remote-Group"]"#,
        "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
    })
}
