//! The user's part of a Sandbox, as the index holds it, as the server and the node agent tell it to each other and as the agent
//! stores it.

use std::collections::BTreeMap;

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

use super::ShutdownPolicy;
use crate::meta::UnixTime;

/// The part of a Sandbox that is the user's: it comes back as it was sent, for the object's life.
///
/// In the index it is shared between versions of the object, since state changes far more often than intent.
/// Unknown fields are skipped, so that an agent and a server of different versions understand each other. Texts that hold JSON
/// stand in the record as JSON.
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
    #[serde(default, skip_serializing_if = "str::is_empty", with = "json_text")]
    pub owner_references: Box<str>,
    /// `metadata.managedFields` as JSON; empty when there are none.
    #[serde(default, skip_serializing_if = "str::is_empty", with = "json_text")]
    pub managed_fields: Box<str>,
    /// `spec` as JSON without `operatingMode`; empty when only metadata is known.
    #[serde(default, skip_serializing_if = "str::is_empty", with = "json_text")]
    pub spec: Box<str>,
    /// `spec.shutdownTime`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<UnixTime>,
    /// `spec.shutdownPolicy`.
    #[serde(default)]
    pub shutdown_policy: ShutdownPolicy,
}

/// A text that is JSON, written as what it is and not as a string.
mod json_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error};
    use serde_json::value::RawValue;

    pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        let json: &RawValue = serde_json::from_str(text).map_err(S::Error::custom)?;
        json.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Box<str>, D::Error> {
        Box::<RawValue>::deserialize(d).map(Box::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_went() {
        let record = UserPart {
            generation: 3,
            labels: [("team".into(), "a".into())].into(),
            finalizers: vec!["x.io/wait".into()],
            spec: r#"{"podTemplate":{"spec":{"b":1,"a":[null]}}}"#.into(),
            shutdown_time: Some(UnixTime::from_secs(1_700_000_000)),
            shutdown_policy: ShutdownPolicy::Delete,
            ..UserPart::default()
        };
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.contains(r#""spec":{"podTemplate""#), "{json}");
        assert!(!json.contains("managedFields"), "{json}");
        assert_eq!(serde_json::from_str::<UserPart>(&json).unwrap(), record);
    }

    #[test]
    fn what_a_later_version_adds_is_skipped() {
        let record: UserPart =
            serde_json::from_str(r#"{"generation": 1, "later": {"x": 1}}"#).unwrap();
        assert_eq!(record.generation, 1);
        assert!(serde_json::from_str::<UserPart>("{}").is_err());
    }
}
