//! What every write does with a body: prune, default, validate.

use serde_json::Value;

use super::{
    Schema,
    cause::{Cause, Causes},
    default,
    path::Path,
    prune, validate,
};

/// What a schema found in an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Paths of the fields that were dropped because the type does not have them, sorted; at most
    /// [`MAX_UNKNOWN`](super::MAX_UNKNOWN).
    pub unknown: Vec<String>,
    /// What is wrong with the object; at most [`MAX_CAUSES`](super::MAX_CAUSES).
    pub causes: Vec<Cause>,
}

impl Schema {
    /// Makes of what a client sent what is stored: drops unknown fields, fills in defaults, and says what is wrong.
    pub fn admit(&self, object: &mut Value) -> Report {
        let unknown = self.prune(object);
        self.default(object);
        let causes = self.validate(object);
        Report { unknown, causes }
    }

    /// Drops the fields of `object` that its type does not have and returns their paths, sorted.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        prune::prune(self.root(), object, &Path::Root, &mut unknown);
        unknown.sort_unstable();
        unknown
    }

    /// Fills in what the type says of absent fields; a null is an absent field unless null is a value of it.
    pub fn default(&self, object: &mut Value) {
        default::default(self.root(), object);
    }

    /// What is wrong with `object`.
    ///
    /// Lists inside the object's own `metadata` may repeat items; [`validate_object_meta`](super::validate_object_meta)
    /// checks the metadata's meaning. Rules in CEL are not evaluated.
    pub fn validate(&self, object: &Value) -> Vec<Cause> {
        let mut causes = Causes::default();
        validate::validate(self.root(), object, &mut causes);
        causes.into_vec()
    }
}
