//! `stats`: what a sandbox uses.

use http::StatusCode;

use super::answer;
use crate::{
    api::SandboxStats,
    apiserver::{Invoke, Invoked, Status},
    fleet::Sandbox,
    resources::Sandboxes,
};

pub(in crate::resources) async fn stats(
    sandboxes: &Sandboxes,
    invoke: Invoke<Sandbox>,
) -> Result<Invoked<Sandbox>, Status> {
    let sandbox = &invoke.object.value;
    let measured = sandboxes.gateway.stats(sandbox).await;
    let measured = measured.map_err(|error| sandboxes.refused(sandbox, &error))?;
    let stats = SandboxStats {
        cpu_count: measured.cpu_count,
        mem_total_bytes: measured.mem_total_bytes,
        mem_used_bytes: measured
            .mem_used_measured
            .then_some(measured.mem_used_bytes),
        paused: measured.hibernated,
        measured_at: measured.measured_at,
    };
    answer(StatusCode::OK, "SandboxStats", sandbox, &stats)
}
