//! Which object a client means: `metav1.Preconditions`.

use std::collections::BTreeMap;

use crate::{
    apiserver::{Resource, Status},
    store::{Stored, Value as _},
};

/// What the object must have; absent fields say nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Preconditions {
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
}

impl Preconditions {
    /// From the fields of the body's `preconditions`.
    pub(super) fn of(mut fields: BTreeMap<String, Option<String>>) -> Self {
        Self {
            uid: fields.remove("uid").flatten(),
            resource_version: fields.remove("resourceVersion").flatten(),
        }
    }

    /// Refuses an object that is not the one the client means.
    ///
    /// # Errors
    /// 409 for another uid or another version.
    pub(super) fn check<R: Resource>(
        &self,
        resource: &R,
        object: &Stored<R::Object>,
    ) -> Result<(), Status> {
        let conflict = |field: &str, wanted: &str, found: String, why: &str| {
            let reason = format!(
                "the {field} in the precondition ({wanted}) does not match the {field} in record ({found}). The object might have been {why}"
            );
            Err(Status::precondition_failed(
                resource.definition(),
                object.value.name(),
                &reason,
            ))
        };
        let uid = resource.uid(&object.value);
        match (&self.uid, &self.resource_version) {
            (Some(wanted), _) if *wanted != uid => {
                conflict("UID", wanted, uid, "deleted and then recreated")
            }
            (_, Some(wanted)) if *wanted != object.version.to_string() => {
                let found = object.version.to_string();
                conflict("ResourceVersion", wanted, found, "modified")
            }
            _ => Ok(()),
        }
    }
}
