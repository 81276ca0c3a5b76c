//! What is wrong with a field, in the reasons and words that clients of the Kubernetes API know.

use std::fmt;

use serde_json::Value;

use super::path::Path;

/// Causes reported of one object; a client that repairs a hundred of them will ask again.
pub const MAX_CAUSES: usize = 100;

/// Longest value repeated in a message. The object itself may be megabytes.
const MAX_SHOWN_VALUE: usize = 1_024;

/// Kind of a fault, as `metav1.CauseType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A field that must be set is not.
    Required,
    /// A malformed value.
    Invalid,
    /// A value of the wrong JSON type.
    TypeInvalid,
    /// A value outside an enumeration.
    NotSupported,
    /// A second value where one is allowed.
    Duplicate,
    /// A value that is not allowed here.
    Forbidden,
    /// A text that is too long.
    TooLong,
    /// A list or map that is too long.
    TooMany,
}

impl Reason {
    /// The reason on the wire: `FieldValueRequired` …
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }
}

/// One fault of an object: an entry of `details.causes` of a Status with reason `Invalid`.
///
/// Displayed as `field: message`, the form that the Status' own message joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Kind of the fault.
    pub reason: Reason,
    /// Where it is: `spec.containers[0].name`.
    pub field: String,
    /// What it is, without the field.
    pub message: String,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Causes found so far, at most [`MAX_CAUSES`]; the rest is not kept.
#[derive(Debug, Default)]
pub(super) struct Causes(Vec<Cause>);

impl Causes {
    pub(super) fn into_vec(self) -> Vec<Cause> {
        self.0
    }

    /// Whether no more causes are kept, so that looking for them is wasted.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MAX_CAUSES
    }

    fn add(&mut self, reason: Reason, path: &Path<'_>, message: impl FnOnce() -> String) {
        if !self.is_full() {
            let (field, message) = (path.to_string(), message());
            self.0.push(Cause {
                reason,
                field,
                message,
            });
        }
    }

    pub(super) fn required(&mut self, path: &Path<'_>, detail: &str) {
        self.add(Reason::Required, path, || {
            detailed("Required value", detail)
        });
    }

    pub(super) fn forbidden(&mut self, path: &Path<'_>, detail: &str) {
        self.add(Reason::Forbidden, path, || detailed("Forbidden", detail));
    }

    pub(super) fn invalid(&mut self, path: &Path<'_>, value: &Value, detail: &str) {
        self.add(Reason::Invalid, path, || {
            detailed(&format!("Invalid value: {}", shown(value)), detail)
        });
    }

    /// A fault that the schema finds: `Invalid value: 5: spec.x in body should …`.
    pub(super) fn violates(&mut self, path: &Path<'_>, value: &Value, rule: &str) {
        self.add(Reason::Invalid, path, || {
            format!("Invalid value: {}: {path} in body {rule}", shown(value))
        });
    }

    /// A value of the type `actual` where `expected` is asked for.
    pub(super) fn type_invalid(&mut self, path: &Path<'_>, expected: &str, actual: &str) {
        self.add(Reason::TypeInvalid, path, || {
            let actual = quoted(actual);
            format!("Invalid value: {actual}: {path} in body must be of type {expected}: {actual}")
        });
    }

    pub(super) fn not_supported(&mut self, path: &Path<'_>, value: &Value, supported: &[Value]) {
        self.add(Reason::NotSupported, path, || {
            let supported: Vec<String> = supported.iter().map(as_quoted).collect();
            let supported = supported.join(", ");
            format!(
                "Unsupported value: {}: supported values: {supported}",
                shown(value)
            )
        });
    }

    pub(super) fn duplicate(&mut self, path: &Path<'_>, value: &Value) {
        self.add(Reason::Duplicate, path, || {
            format!("Duplicate value: {}", shown(value))
        });
    }

    pub(super) fn too_long(&mut self, path: &Path<'_>, limit: u64) {
        self.add(Reason::TooLong, path, || {
            format!(
                "Too long: may not be more than {limit} {}",
                plural(limit, "byte")
            )
        });
    }

    pub(super) fn too_many(&mut self, path: &Path<'_>, count: usize, limit: u64) {
        self.add(Reason::TooMany, path, || {
            format!(
                "Too many: {count}: must have at most {limit} {}",
                plural(limit, "item")
            )
        });
    }
}

fn detailed(what: &str, detail: &str) -> String {
    match detail {
        "" => what.to_owned(),
        _ => format!("{what}: {detail}"),
    }
}

fn plural(count: u64, noun: &str) -> String {
    if count == 1 {
        noun.to_owned()
    } else {
        format!("{noun}s")
    }
}

/// A text in quotes, cut to what a message may carry.
fn quoted(text: &str) -> String {
    let cut = text.floor_char_boundary(MAX_SHOWN_VALUE);
    let mut quoted = Value::from(&text[..cut]).to_string();
    if cut < text.len() {
        quoted.push('…');
    }
    quoted
}

/// A value as a message shows it: JSON, cut to what a message may carry.
fn shown(value: &Value) -> String {
    let mut json = match (value, value.as_f64()) {
        (Value::String(text), _) => return quoted(text),
        // Go prints no `.0`.
        (Value::Number(_), Some(float)) if value.is_f64() => float.to_string(),
        _ => value.to_string(),
    };
    if json.len() > MAX_SHOWN_VALUE {
        json.truncate(json.floor_char_boundary(MAX_SHOWN_VALUE));
        json.push('…');
    }
    json
}

/// An allowed value; those that are no text are quoted, too, as the API server does.
fn as_quoted(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => quoted(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_carries_no_megabytes() {
        let mut causes = Causes::default();
        causes.invalid(
            &Path::Root.field("a"),
            &json!("ä".repeat(1 << 20)),
            "too big",
        );
        causes.invalid(
            &Path::Root.field("a"),
            &json!(vec!["ä"; 1 << 20]),
            "too big",
        );
        assert!(causes.0.iter().all(|cause| cause.message.len() < 1_100));
    }

    #[test]
    fn causes_are_bounded() {
        let mut causes = Causes::default();
        for _ in 0..MAX_CAUSES + 1 {
            causes.required(&Path::Root, "");
        }
        assert_eq!(causes.into_vec().len(), MAX_CAUSES);
    }

    #[test]
    fn values_and_nouns_follow_the_count() {
        let mut causes = Causes::default();
        causes.too_many(&Path::Root.field("a"), 2, 1);
        causes.too_long(&Path::Root.field("a"), 3);
        causes.not_supported(&Path::Root.field("a"), &json!(3), &[json!("b"), json!(1)]);
        let texts: Vec<String> = causes.into_vec().iter().map(Cause::to_string).collect();
        assert_eq!(
            texts,
            [
                "a: Too many: 2: must have at most 1 item",
                "a: Too long: may not be more than 3 bytes",
                "a: Unsupported value: 3: supported values: \"b\", \"1\"",
            ]
        );
    }
}
