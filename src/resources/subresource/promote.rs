//! `promote`: a sandbox's state as a template of its node.

use http::StatusCode;

use super::answer;
use crate::{
    api::{SandboxPromoteOptions, SandboxPromotion},
    apiserver::{Invoke, Invoked, Status},
    fleet::Sandbox,
    gateway::Progress,
    resources::Sandboxes,
};

pub(in crate::resources) async fn promote(
    sandboxes: &Sandboxes,
    invoke: Invoke<Sandbox>,
) -> Result<Invoked<Sandbox>, Status> {
    let options: SandboxPromoteOptions = serde_json::from_value(invoke.options.clone())
        .map_err(|error| Status::bad_request(format!("invalid SandboxPromoteOptions: {error}")))?;
    let sandbox = &invoke.object.value;
    let pool = sandbox.pool.as_deref();
    let would_be = SandboxPromotion {
        template: options.template.clone(),
        net: pool.map_or_else(String::new, |pool| pool.net.to_string()),
        size: pool.map_or_else(String::new, |pool| pool.size.to_string()),
        node: sandbox.node.to_string(),
    };
    if invoke.dry_run {
        return answer(StatusCode::CREATED, "SandboxPromotion", sandbox, &would_be);
    }
    let outcome = sandboxes
        .gateway
        .promote(invoke.object.clone(), options.template)
        .await;
    match outcome.map_err(|error| sandboxes.refused(sandbox, &error))? {
        Progress::Going => answer(StatusCode::ACCEPTED, "SandboxPromotion", sandbox, &would_be),
        Progress::Done(key) => {
            let promotion = SandboxPromotion {
                template: key.template.to_string(),
                net: key.net.to_string(),
                size: key.size.to_string(),
                node: would_be.node,
            };
            answer(StatusCode::CREATED, "SandboxPromotion", sandbox, &promotion)
        }
    }
}
