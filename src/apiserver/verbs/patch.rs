//! The forms of a patch: operations (RFC 6902), a partial object (RFC 7386), and an applied configuration, see `apply`.
//!
//! Strategic merge patches are refused with 415, as for custom resources: clients then send a merge patch.

use std::sync::Arc;

use http::Response;
use json_patch::{Patch, PatchError, PatchErrorKind, PatchOperation};
use serde_json::Value;

use super::{
    apply,
    request::VerbRequest,
    update::{Revised, store},
};
use crate::{
    apiserver::{
        Body, Resource, Status,
        negotiate::{Offer, content_type, is_apply},
        options::WriteOptions,
    },
    schema::{Decoded, PatchType, decode_json},
};

/// Operations of one patch.
const MAX_OPERATIONS: usize = 10_000;
/// Bytes that all copies of one patch may make: a value copied into itself doubles each time. Ten bodies, as in
/// kube-apiserver.
const MAX_COPIED: usize = 3 << 20;

/// Levels of a patched object, as of one that is parsed. Moves into what was moved double them each time, and what walks over
/// an object, be it to drop it, has no stack for a million.
const MAX_DEPTH: usize = 127;
/// Values that are looked at for their depth while a patch moves them.
const MAX_WALKED: usize = 10_000_000;

/// A patch but for an applied configuration.
pub(super) enum Change {
    Operations(Patch),
    Merge(Decoded),
}

pub(super) async fn patch<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    if is_apply(&request.headers) {
        return apply::apply(resource, request).await;
    }
    let negotiated = request.negotiate(Offer::Plain)?;
    let change = Change::read(request)?;
    let options = WriteOptions::parse(&request.query, "PatchOptions")?;
    refuse_force(request)?;
    store(resource.as_ref(), request, &options, negotiated, |old| {
        change.apply(old)
    })
    .await
}

/// Refuses `force`, which only an apply has.
///
/// # Errors
/// 422.
pub(super) fn refuse_force(request: &VerbRequest) -> Result<(), Status> {
    let force = request.query.get("force");
    match force.is_none_or(str::is_empty) {
        true => Ok(()),
        false => {
            let message = "Forbidden: may not be specified for non-apply patch";
            Err(Status::invalid_option("PatchOptions", "force", message))
        }
    }
}

impl Change {
    /// The change in the body.
    ///
    /// # Errors
    /// 415 for a form that is not taken, 400 for a body that is no patch, 413 for too many operations.
    pub(super) fn read(request: &VerbRequest) -> Result<Self, Status> {
        let accepted =
            [PatchType::Json, PatchType::Merge, PatchType::Apply].map(PatchType::media_type);
        let essence = content_type(&request.headers);
        let malformed = |error: &dyn std::fmt::Display| {
            Status::bad_request(format!("error decoding patch: {error}"))
        };
        if essence == PatchType::Json.media_type() {
            let patch = decode_json(&request.body).map_err(|error| malformed(&error))?;
            let patch: Patch =
                serde_json::from_value(patch.value).map_err(|error| malformed(&error))?;
            if patch.0.len() > MAX_OPERATIONS {
                return Err(Status::too_many_operations(MAX_OPERATIONS, patch.0.len()));
            }
            return Ok(Self::Operations(patch));
        }
        if essence == PatchType::Merge.media_type() {
            let merge = decode_json(&request.body).map_err(|error| malformed(&error))?;
            if !merge.value.is_object() {
                return Err(Status::bad_request(
                    "error decoding patch: a merge patch must be an object",
                ));
            }
            return Ok(Self::Merge(merge));
        }
        Err(Status::unsupported_media_type(&accepted))
    }

    /// What it makes of a value.
    ///
    /// # Errors
    /// 422 when it does not fit, 413 for copies of copies.
    pub(super) fn apply(&self, old: &Value) -> Result<Revised, Status> {
        let mut object = old.clone();
        match self {
            Self::Merge(Decoded { value, duplicates }) => {
                json_patch::merge(&mut object, value);
                Ok(Revised {
                    object,
                    duplicates: duplicates.clone(),
                    applied: false,
                })
            }
            Self::Operations(patch) => {
                operate(&mut object, patch)?;
                Ok(Revised {
                    object,
                    duplicates: Vec::new(),
                    applied: false,
                })
            }
        }
    }
}

/// Carries out the operations, one after the other; the object is of no use when one fails.
///
/// # Errors
/// 422 for an operation that does not fit or nests too deep, 413 for copies of copies.
fn operate(object: &mut Value, patch: &Patch) -> Result<(), Status> {
    let mut growth = Growth::new(object);
    for (index, operation) in patch.iter().enumerate() {
        growth.admit(object, operation)?;
        // Without the crate's own rollback, which panics on operations that cannot be undone; the object is a copy.
        json_patch::patch_unsafe(object, std::slice::from_ref(operation))
            .map_err(|error| inapplicable(index, &error))?;
    }
    Ok(())
}

/// 422 for a patch that does not fit the object, or whose test fails.
fn inapplicable(index: usize, error: &PatchError) -> Status {
    let PatchError { path, kind, .. } = error;
    let reason = match kind {
        PatchErrorKind::TestFailed => format!("testing value {path} failed"),
        kind => format!("operation {index} at {path}: {kind}"),
    };
    unfit(&reason)
}

fn unfit(reason: &str) -> Status {
    Status::unprocessable(format!(
        "the server rejected our request due to an error in our request: {reason}"
    ))
}

/// What a patch has made of an object so far.
struct Growth {
    /// Bytes copied.
    copied: usize,
    /// Values walked over.
    walked: usize,
    /// The object has no more levels than these.
    depth: usize,
}

impl Growth {
    fn new(object: &Value) -> Self {
        let (depth, walked) = depth(object);
        Self {
            copied: 0,
            walked,
            depth,
        }
    }

    /// Counts an operation before it is done.
    ///
    /// # Errors
    /// When it would make the object too deep or too large.
    fn admit(&mut self, object: &Value, operation: &PatchOperation) -> Result<(), Status> {
        let (at, below) = match operation {
            PatchOperation::Add(add) => (&add.path, depth(&add.value).0),
            PatchOperation::Replace(replace) => (&replace.path, depth(&replace.value).0),
            PatchOperation::Move(moved) => (&moved.path, self.source(object, moved.from.as_str())?),
            PatchOperation::Copy(copy) => {
                let source = object.pointer(copy.from.as_str());
                self.copied += source.map_or(0, |source| source.to_string().len());
                if self.copied > MAX_COPIED {
                    return Err(Status::too_large(MAX_COPIED));
                }
                (&copy.path, self.source(object, copy.from.as_str())?)
            }
            PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
        };
        let levels = at.as_str().matches('/').count() + below;
        if levels > MAX_DEPTH {
            return Err(unfit(&format!("more than {MAX_DEPTH} levels")));
        }
        self.depth = self.depth.max(levels);
        Ok(())
    }

    /// Levels of the value at a place, or as many as it cannot have more.
    fn source(&mut self, object: &Value, from: &str) -> Result<usize, Status> {
        // Where even the deepest would do, nothing is walked over.
        if 2 * self.depth <= MAX_DEPTH {
            return Ok(self.depth);
        }
        let (depth, walked) = object.pointer(from).map_or((0, 0), depth);
        self.walked += walked;
        match self.walked > MAX_WALKED {
            true => Err(unfit("it moves values too deep too often")),
            false => Ok(depth),
        }
    }
}

/// Levels of a value, and how many values it is made of.
fn depth(value: &Value) -> (usize, usize) {
    let (mut deepest, mut count) = (0, 0);
    let mut open = vec![(value, 1)];
    while let Some((value, level)) = open.pop() {
        (deepest, count) = (deepest.max(level), count + 1);
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(fields) => open.extend(fields.values().map(|item| (item, level + 1))),
            _ => {}
        }
    }
    (deepest, count)
}
