//! Who the caller is.

mod credentials;
mod front_proxy;
mod listening_node;
mod subprotocol;

use std::time::Duration;

use self::{
    credentials::{c_025, c_028, c_029, c_030, c_031, c_032},
    front_proxy::{c_020, c_021, c_022, c_023, c_024, c_026, c_027},
    subprotocol::c_033,
};
use crate::{caller::Answer, conformance::client::Client};

items! {
    c_020 P0 "Whom to trust is read from one ConfigMap, by that name alone, and followed; who cannot read it does not start.", ours;
    c_021 P0 "A certificate of the front proxy's CA with an allowed name, and a user in the headers, are an identity.", ours;
    c_022 P0 "A certificate of the front proxy's CA with another name is a bad credential.", ours;
    c_023 P0 "Identity headers of anybody but the front proxy are ignored.", ours;
    c_024 P0 "Groups, extras and the UID come from the headers that the ConfigMap names, all values of them.", ours;
    c_025 P0 "Credentials and identity headers reach neither the log, nor kube-apiserver but in a review, nor a node.", ours;
    c_026 P0 "Every known user is in `system:authenticated`, also when the proxy names no group.", ours;
    c_027 P0 "A client certificate names a user by its common name and groups by its organizations.", ours;
    c_028 P0 "Tokens are reviewed by kube-apiserver; answers count for 10 s, and failures to ask are never kept.", ours;
    c_029 P0 "Who shows no credential is anonymous, and who shows a bad one is nobody.", ours;
    c_030 P0 "Who shows a bad credential is told nothing but Unauthorized; over HTTP/2 the connection of a stranger ends with the answer.", ours;
    c_031 P1 "The proxy's headers come before the certificate and that before the token, and a bad one does not hide the next.", ours;
    c_032 P1 "Impersonation needs a right for each thing that the caller wants to be.", ours;
    c_033 P2 "A WebSocket client may carry its token as a subprotocol, which is never echoed.", ours;
}

const SOON: Duration = Duration::from_secs(15);
/// What nobody but the front proxy may say.
const SPOOFED: [(&str, &str); 3] = [
    ("x-remote-user", "root"),
    ("x-remote-group", "system:masters"),
    ("x-remote-extra-scopes", "all"),
];

/// The user that a refusal names.
#[track_caller]
fn refused_user(answer: &Answer) -> String {
    answer.expect(403, "Forbidden");
    let message = answer.body["message"].as_str().unwrap_or_default();
    let (_, user) = message.split_once("User \"").expect("it names the user");
    user.split('"').next().unwrap_or_default().to_owned()
}

/// The user that a client is taken for at the server's own port.
async fn user_of(client: &Client, headers: &[(&str, &str)]) -> String {
    refused_user(&client.send("GET", "/metrics", headers, "").await)
}
