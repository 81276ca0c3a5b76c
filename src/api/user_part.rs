//! The user's part of a Sandbox, as the index holds it, as the server and the node agent tell it to each other and as the agent
//! stores it.

use std::collections::BTreeMap;

use compact_str::CompactString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use serde::{Deserialize, Serialize};

use super::{ShutdownPolicy, labels::is_reserved};
use crate::meta::UnixTime;

/// The part of a Sandbox that is the user's: it comes back as it was sent, for the object's life.
///
/// In the index it is shared between versions of the object, since state changes far more often than intent.
/// Unknown fields are skipped, so that an agent and a server of different versions understand each other. Texts that hold JSON
/// stand in the record as JSON. They are put into objects as they are, so one that has another shape than its field is refused
/// when it is read, and the rest is kept without white space.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserPart {
    /// `metadata.generation`, without the one that a deletion adds.
    pub generation: i64,
    /// `metadata.generateName`; empty when the name was given.
    #[serde(default, skip_serializing_if = "CompactString::is_empty")]
    pub generate_name: CompactString,
    /// Labels, without the server's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<CompactString, CompactString>,
    /// Annotations, without the server's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<CompactString, Box<str>>,
    /// Finalizers, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<CompactString>,
    /// `metadata.ownerReferences` as JSON; empty when there are none.
    #[serde(
        default,
        skip_serializing_if = "str::is_empty",
        serialize_with = "json_text::serialize",
        deserialize_with = "json_text::list::<_, OwnerReference>"
    )]
    pub owner_references: Box<str>,
    /// `metadata.managedFields` as JSON; empty when there are none.
    #[serde(
        default,
        skip_serializing_if = "str::is_empty",
        serialize_with = "json_text::serialize",
        deserialize_with = "json_text::list::<_, ManagedFieldsEntry>"
    )]
    pub managed_fields: Box<str>,
    /// `spec` as JSON without `operatingMode`; empty when only metadata is known.
    #[serde(
        default,
        skip_serializing_if = "str::is_empty",
        serialize_with = "json_text::serialize",
        deserialize_with = "json_text::spec"
    )]
    pub spec: Box<str>,
    /// `spec.shutdownTime`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<UnixTime>,
    /// `spec.shutdownPolicy`.
    #[serde(default)]
    pub shutdown_policy: ShutdownPolicy,
}

impl UserPart {
    /// Takes over what somebody else said of the same sandbox before. What is said here goes first.
    pub fn take_over(&mut self, before: &Self) {
        for (key, value) in &before.labels {
            let label = self.labels.entry(key.clone());
            label.or_insert_with(|| value.clone());
        }
        for (key, value) in &before.annotations {
            let annotation = self.annotations.entry(key.clone());
            annotation.or_insert_with(|| value.clone());
        }
        let finalizers = before.finalizers.iter();
        let others: Vec<_> = finalizers
            .filter(|finalizer| !self.finalizers.contains(finalizer))
            .cloned()
            .collect();
        self.finalizers.extend(others);
        if self.managed_fields.is_empty() {
            self.managed_fields.clone_from(&before.managed_fields);
        }
        self.generation = self.generation.max(before.generation);
    }

    /// Takes out the labels, annotations and finalizers that are the server's own.
    pub fn drop_reserved(&mut self) {
        self.finalizers.retain(|finalizer| !is_reserved(finalizer));
        self.labels.retain(|key, _| !is_reserved(key));
        self.annotations.retain(|key, _| !is_reserved(key));
    }
}

/// A text that is JSON, written as what it is and not as a string.
mod json_text {
    use serde::{
        Deserialize, Deserializer, Serialize, Serializer,
        de::{DeserializeOwned, Error as _},
        ser::Error as _,
    };
    use serde_json::{Map, Value, value::RawValue};

    /// Deepest JSON that is taken. An object and a line of a feed have it some levels further in, and readers stop at 128.
    const MAX_DEPTH: usize = 100;

    pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        let json: &RawValue = serde_json::from_str(text).map_err(S::Error::custom)?;
        json.serialize(serializer)
    }

    /// An object, without the mode: that is the state's to say.
    pub(super) fn spec<'de, D: Deserializer<'de>>(d: D) -> Result<Box<str>, D::Error> {
        let Some(mut fields) = Option::<Map<String, Value>>::deserialize(d)? else {
            return Ok(Box::default());
        };
        fields.remove("operatingMode");
        compact(&Value::Object(fields))
    }

    /// A list of which every element reads as a `T`.
    pub(super) fn list<'de, D, T>(d: D) -> Result<Box<str>, D::Error>
    where
        D: Deserializer<'de>,
        T: DeserializeOwned,
    {
        let Some(elements) = Option::<Vec<Value>>::deserialize(d)? else {
            return Ok(Box::default());
        };
        for element in &elements {
            T::deserialize(element).map_err(D::Error::custom)?;
        }
        compact(&Value::Array(elements))
    }

    fn compact<E: serde::de::Error>(value: &Value) -> Result<Box<str>, E> {
        match depth(value) {
            0..=MAX_DEPTH => Ok(value.to_string().into()),
            _ => Err(E::custom("nested too deeply")),
        }
    }

    fn depth(value: &Value) -> usize {
        let inner = match value {
            Value::Array(elements) => elements.iter().map(depth).max(),
            Value::Object(fields) => fields.values().map(depth).max(),
            _ => return 0,
        };
        1 + inner.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_before_stays_beside_what_is_said_now() {
        let labels = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(key, value)| ((*key).into(), (*value).into()));
            pairs.collect()
        };
        let before = UserPart {
            generation: 2,
            labels: labels(&[("a", "before"), ("b", "before")]),
            finalizers: vec!["x.io/one".into(), "x.io/two".into()],
            ..UserPart::default()
        };
        let mut now = UserPart {
            generation: 1,
            labels: labels(&[("a", "now")]),
            finalizers: vec!["x.io/two".into()],
            ..UserPart::default()
        };
        now.take_over(&before);
        assert_eq!(now.labels, labels(&[("a", "now"), ("b", "before")]));
        assert_eq!(now.finalizers, ["x.io/two", "x.io/one"]);
        assert_eq!(now.generation, 2);
    }

    #[test]
    fn a_record_comes_back_as_it_went() {
        let record = UserPart {
            generation: 3,
            labels: [("team".into(), "a".into())].into(),
            finalizers: vec!["x.io/wait".into()],
            spec: r#"{"podTemplate":{"spec":{"a":[null],"b":1}}}"#.into(),
            shutdown_time: Some(UnixTime::from_secs(1_700_000_000)),
            shutdown_policy: ShutdownPolicy::Delete,
            ..UserPart::default()
        };
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.contains(r#""spec":{"podTemplate""#), "{json}");
        assert!(!json.contains("managedFields"), "{json}");
        assert_eq!(serde_json::from_str::<UserPart>(&json).unwrap(), record);
    }

    #[track_caller]
    fn reads(field: &str, json: &str, expected: Option<&str>) {
        let record = format!(r#"{{"generation": 1, "{field}": {json}}}"#);
        let read = serde_json::from_str::<UserPart>(&record).ok();
        let text = |part: UserPart| match field {
            "spec" => part.spec,
            "managedFields" => part.managed_fields,
            _ => part.owner_references,
        };
        assert_eq!(read.map(text).as_deref(), expected, "{record}");
    }

    #[test]
    fn what_is_put_into_objects_has_its_shape_and_no_white_space() {
        reads("spec", "{ }", Some("{}"));
        reads("spec", "null", Some(""));
        reads("spec", "{\n \"a\" : [ 1,\n2 ] }", Some(r#"{"a":[1,2]}"#));
        reads("spec", r#"{"operatingMode": "Running"}"#, Some("{}"));
        for other in [
            "5",
            "[]",
            r#""{}""#,
            r#"{"a": "\ud800"}"#,
            r#"{"a": 1e999}"#,
        ] {
            reads("spec", other, None);
        }
        let nested = |depth| format!("{}{}", r#"{"a":"#.repeat(depth) + "1", "}".repeat(depth));
        reads("spec", &nested(100), Some(&nested(100)));
        reads("spec", &nested(101), None);
        for field in ["ownerReferences", "managedFields"] {
            reads(field, "[ ]", Some("[]"));
            for other in ["5", "{}", "[[]]", "[null]", r#"["a"]"#] {
                reads(field, other, None);
            }
        }
        let owner = r#"[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]"#;
        reads("ownerReferences", owner, Some(owner));
        reads("ownerReferences", r#"[{"name": 5}]"#, None);
        let applied = r#"[{"fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}},"manager":"m","operation":"Apply","time":"2026-01-01T00:00:00Z"}]"#;
        reads("managedFields", applied, Some(applied));
        reads("managedFields", r#"[{"time": "yesterday"}]"#, None);
    }

    #[test]
    fn the_servers_own_keys_are_nobody_elses() {
        let mut part = UserPart::default();
        for key in [
            "sandbox.cocoonstack.io/node",
            "sandbox.cocoonstack.io/net",
            "team",
        ] {
            part.labels.insert(key.into(), "x".into());
            part.annotations.insert(key.into(), "x".into());
        }
        part.drop_reserved();
        let expected = ["sandbox.cocoonstack.io/net", "team"];
        assert!(part.labels.keys().eq(expected) && part.annotations.keys().eq(expected));
    }

    #[test]
    fn what_a_later_version_adds_is_skipped() {
        let record: UserPart =
            serde_json::from_str(r#"{"generation": 1, "later": {"x": 1}}"#).unwrap();
        assert_eq!(record.generation, 1);
        assert!(serde_json::from_str::<UserPart>("{}").is_err());
    }
}
