//! One step of a path through an object: into a field, or to an item of a list.

use std::{cmp::Ordering, fmt};

use compact_str::CompactString;
use serde_json::Value;

use super::{
    go::{self, Json, Plain, Quoted},
    order,
};

/// One step of a path.
#[derive(Clone, Debug)]
pub enum Element {
    /// The field of this name.
    Field(CompactString),
    /// The item of a list of objects whose fields have these values; sorted by name.
    Key(Box<[(CompactString, Value)]>),
    /// The item of a set.
    Value(Value),
    /// The item at an index.
    Index(i64),
}

/// A key of FieldsV1 that does not name a step.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no path element: {0}")]
pub struct InvalidElement(pub(super) String);

impl Element {
    /// Reads a key of FieldsV1, such as `f:spec`; none for a kind of step that a later version of Kubernetes may know.
    pub(super) fn parse(key: &str) -> Result<Option<Self>, InvalidElement> {
        let invalid = || InvalidElement(key.to_owned());
        let (kind, content) = key.split_once(':').ok_or_else(invalid)?;
        Ok(Some(match kind {
            "f" => Self::Field(content.into()),
            "v" => {
                let value = serde_json::from_str(content).map_err(|_| invalid())?;
                Self::Value(as_read(value))
            }
            "i" => Self::Index(content.parse().map_err(|_| invalid())?),
            "k" => match serde_json::from_str(content) {
                Ok(Value::Object(fields)) => Self::Key(
                    fields
                        .into_iter()
                        .map(|(name, value)| (name.into(), as_read(value)))
                        .collect(),
                ),
                _ => return Err(invalid()),
            },
            _ if kind.len() == 1 => return Ok(None),
            _ => return Err(invalid()),
        }))
    }

    /// Writes the key of FieldsV1 that names this step.
    pub(super) fn write_key(&self, key: &mut impl fmt::Write) -> fmt::Result {
        match self {
            Self::Field(name) => {
                key.write_str("f:")?;
                key.write_str(name)
            }
            Self::Key(fields) => {
                key.write_str("k:")?;
                go::json_object(
                    fields.iter().map(|(name, value)| (name.as_str(), value)),
                    key,
                )
            }
            Self::Value(value) => write!(key, "v:{}", Json(value)),
            Self::Index(index) => write!(key, "i:{index}"),
        }
    }
}

/// A value out of FieldsV1, where Kubernetes reads each number as a float: that is how conflicts show it. An integer of an
/// object stays one, and so does one that would become another number.
fn as_read(value: Value) -> Value {
    /// Up to here every integer is a float as well.
    const EXACT: u64 = 1 << 53;
    match value.as_i64() {
        Some(integer) if integer.unsigned_abs() <= EXACT => (integer as f64).into(),
        _ => value,
    }
}

/// As conflicts show it: `.spec`, `[name="a"]`, `[="a"]`, `[0]`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                for (index, (name, value)) in fields.iter().enumerate() {
                    let before = if index == 0 { '[' } else { ',' };
                    write!(f, "{before}{name}={}", Shown(value))?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={}]", Shown(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A scalar in a path.
struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(text) => Quoted(text).fmt(f),
            Value::Null => f.write_str("null"),
            Value::Number(number) if !number.is_f64() => write!(f, "{number}"),
            other => Plain(other).fmt(f),
        }
    }
}

/// Fields, then keys, then values, then indices; numbers by value.
impl Ord for Element {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(left), Self::Field(right)) => left.cmp(right),
            (Self::Key(left), Self::Key(right)) => compare_keys(left, right),
            (Self::Value(left), Self::Value(right)) => order::compare(left, right),
            (Self::Index(left), Self::Index(right)) => left.cmp(right),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl Element {
    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

fn compare_keys(left: &[(CompactString, Value)], right: &[(CompactString, Value)]) -> Ordering {
    let pairs = left.iter().zip(right);
    pairs
        .map(|((name, value), (other_name, other))| {
            name.cmp(other_name)
                .then_with(|| order::compare(value, other))
        })
        .find(|order| order.is_ne())
        .unwrap_or_else(|| left.len().cmp(&right.len()))
}

impl PartialOrd for Element {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Element {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(key: &str, path: &str) {
        let element = Element::parse(key).unwrap().unwrap();
        let mut written = String::new();
        element.write_key(&mut written).unwrap();
        assert_eq!(written, key);
        assert_eq!(element.to_string(), path);
    }

    #[test]
    fn elements_read_as_kubernetes_writes_them() {
        check("f:spec", ".spec");
        check("f:", ".");
        check("f:a:b", ".a:b");
        check(r#"k:{"name":"a"}"#, r#"[name="a"]"#);
        check(
            r#"k:{"containerPort":80,"protocol":"TCP"}"#,
            r#"[containerPort=80,protocol="TCP"]"#,
        );
        check(r#"k:{"name":"a\u003cb"}"#, r#"[name="a<b"]"#);
        check(r#"v:"a.example/b""#, r#"[="a.example/b"]"#);
        check("v:1", "[=1]");
        check("v:null", "[=null]");
        check("i:3", "[3]");
    }

    #[test]
    fn a_number_out_of_fields_v1_is_shown_as_a_float_and_one_of_an_object_as_it_is() {
        check(r#"k:{"id":1000000}"#, "[id=1e+06]");
        check("v:-1234567", "[=-1.234567e+06]");
        for exact in ["9007199254740993", "9223372036854775807"] {
            check(&format!("v:{exact}"), &format!("[={exact}]"));
        }
        let of_object = Element::Key([("id".into(), 1_000_000.into())].into());
        assert_eq!(of_object.to_string(), "[id=1000000]");
    }

    #[test]
    fn what_names_no_step_is_refused_or_passed_over() {
        assert_eq!(Element::parse("x:later"), Ok(None));
        for key in ["", ".", "f", "spec", "spec:a", "k:1", "k:{", "v:", "i:x"] {
            assert!(Element::parse(key).is_err(), "{key}");
        }
    }
}
