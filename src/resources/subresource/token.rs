//! `token`: a sandbox's credential, for who may have it.

use http::StatusCode;

use super::answer;
use crate::{
    api::SandboxToken,
    apiserver::{Invoke, Invoked, Status},
    fleet::Sandbox,
    resources::Sandboxes,
};

pub(in crate::resources) async fn token(
    sandboxes: &Sandboxes,
    invoke: Invoke<Sandbox>,
) -> Result<Invoked<Sandbox>, Status> {
    let sandbox = &invoke.object.value;
    let mut answered = SandboxToken {
        token: String::new(),
        address: sandbox.reached_at().map(String::from),
    };
    // A dry run gives no credential away.
    if !invoke.dry_run {
        let token = sandboxes.gateway.token(sandbox).await;
        let token = token.map_err(|error| sandboxes.refused(sandbox, &error))?;
        answered.token = token.expose().to_owned();
    }
    answer(StatusCode::CREATED, "SandboxToken", sandbox, &answered)
}
