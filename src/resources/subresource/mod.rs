//! Actions on a Sandbox and questions about it, a file each.

mod fork;
mod pause;
mod promote;
mod snapshot;
mod stats;
mod token;

pub(super) use fork::fork;
pub(super) use pause::{pause, resume};
pub(super) use promote::promote;
pub(super) use snapshot::snapshot;
pub(super) use stats::stats;
pub(super) use token::token;

use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    api::{GROUP, V1BETA1},
    apiserver::{Invoked, Status},
    fleet::Sandbox,
};

/// An answer of a kind of its own, about a sandbox.
fn answer(
    code: StatusCode,
    kind: &str,
    sandbox: &Sandbox,
    fields: &impl Serialize,
) -> Result<Invoked<Sandbox>, Status> {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/{V1BETA1}"),
        "kind": kind,
        "metadata": {"namespace": sandbox.namespace.as_str(), "name": sandbox.name.as_str()},
    });
    let fields = serde_json::to_value(fields);
    let fields = fields.map_err(|error| Status::internal(error.to_string()))?;
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    Ok(Invoked::Json(code, object))
}
