//! What a node reads: the bodies of requests, and the rules for what stands in them.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Generation, Refusal};

/// Longest body a daemon reads.
pub(super) const MAX_BODY: usize = 1 << 20;

/// Body of a claim. Fields of a later generation are cleared by [`ClaimBody::check`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaimBody {
    pub(super) template: String,
    pub(super) net: String,
    pub(super) size: String,
    pub(super) ttl_seconds: i64,
    pub(super) claim_ref: String,
    pub(super) no_redirect: bool,
    pub(super) require_promoted: bool,
    pub(super) volumes: Vec<Value>,
    pub(super) volumes_attach_only: bool,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) on_expire: String,
    pub(super) env: BTreeMap<String, EnvVar>,
}

/// Body of a claim of a checkpoint.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CheckpointClaimBody {
    pub(super) ttl_seconds: i64,
    pub(super) no_redirect: bool,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) on_expire: String,
    pub(super) env: BTreeMap<String, EnvVar>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EnvVar {
    pub(super) value: String,
    #[serde(default = "yes")]
    pub(super) guest: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RenewBody {
    pub(super) ttl_seconds: i64,
    pub(super) on_expire: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ForkBody {
    pub(super) token: String,
    pub(super) count: i64,
    pub(super) ttl_seconds: i64,
    pub(super) claim_ref_prefix: String,
    pub(super) on_expire: String,
}

/// Body of promote, checkpoint and preview.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedBody {
    pub(super) token: String,
    pub(super) template: String,
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PoolsBody {
    pub(super) pools: Vec<PoolBody>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PoolBody {
    pub(super) template: String,
    #[serde(default)]
    pub(super) net: String,
    #[serde(default)]
    pub(super) size: String,
    pub(super) warm: i64,
    #[serde(default)]
    pub(super) warm_max: i64,
    #[serde(default)]
    pub(super) idle_hibernate_seconds: i64,
    #[serde(default)]
    pub(super) archive_after_seconds: i64,
    #[serde(default)]
    pub(super) archive_delete_after_seconds: i64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LabelsBody {
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EnvBody {
    pub(super) env: BTreeMap<String, Option<EnvVar>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecBody {
    pub(super) argv: Vec<String>,
    #[serde(default)]
    pub(super) cwd: String,
    #[serde(default, rename = "env")]
    _env: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) timeout_seconds: i64,
}

fn yes() -> bool {
    true
}

/// A body in which unknown fields are ignored and `null` is absence, as Go reads one.
pub(super) fn lenient<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    parse(body).map_err(|_| Refusal::bad("invalid request body"))
}

/// A body in which an unknown field is named and refused.
pub(super) fn strict<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    parse(body).map_err(|error| Refusal::bad(format!("invalid request body: {error}")))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> serde_json::Result<T> {
    let mut value: Value = serde_json::from_slice(body)?;
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| !field.is_null());
    }
    serde_json::from_value(value)
}

impl ClaimBody {
    /// Clears what the generation does not know, and refuses what no claim may hold.
    pub(super) fn check(&mut self, generation: Generation) -> Result<(), Refusal> {
        if generation < Generation::B {
            self.metadata.clear();
            self.on_expire.clear();
            self.env.clear();
        }
        if generation == Generation::Early {
            self.volumes.clear();
        }
        // These nodes have no volumes, and a daemon says the same of an unknown and of a forbidden one.
        if !self.volumes.is_empty() {
            return Err(Refusal::bad("unknown volume"));
        }
        if self.volumes_attach_only {
            return Err(Refusal::bad("volumes_attach_only needs a volume"));
        }
        check_extras(&self.metadata, &self.on_expire, &self.env)
    }
}

impl CheckpointClaimBody {
    pub(super) fn check(&mut self, generation: Generation) -> Result<(), Refusal> {
        if generation < Generation::B {
            *self = Self {
                ttl_seconds: self.ttl_seconds,
                no_redirect: self.no_redirect,
                ..Self::default()
            };
        }
        check_extras(&self.metadata, &self.on_expire, &self.env)
    }
}

fn check_extras(
    metadata: &BTreeMap<String, String>,
    on_expire: &str,
    env: &BTreeMap<String, EnvVar>,
) -> Result<(), Refusal> {
    check_metadata(metadata)?;
    check_on_expire(on_expire)?;
    env.iter()
        .try_for_each(|(name, var)| check_env(name, var))?;
    check_env_count(env.len())
}

/// At most 16 pairs and 4 KiB as JSON, keys that a query can name.
pub(super) fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let key_fits = |key: &str| {
        (1..=128).contains(&key.len())
            && key
                .bytes()
                .all(|b| (b == b' ' || b.is_ascii_graphic()) && b != b'=' && b != b'&')
    };
    let value_fits = |value: &str| value.len() <= 512 && !value.chars().any(char::is_control);
    let size = serde_json::to_string(metadata).map_or(0, |json| json.len());
    let fits = metadata.len() <= 16
        && size <= 4096
        && metadata
            .iter()
            .all(|(key, value)| key_fits(key) && value_fits(value));
    fits.then_some(())
        .ok_or_else(|| Refusal::bad("invalid metadata"))
}

pub(super) fn check_on_expire(on_expire: &str) -> Result<(), Refusal> {
    matches!(on_expire, "" | "destroy" | "archive")
        .then_some(())
        .ok_or_else(|| Refusal::bad("on_expire must be destroy or archive"))
}

pub(super) fn check_env(name: &str, var: &EnvVar) -> Result<(), Refusal> {
    let mut bytes = name.bytes();
    let name_fits = bytes
        .next()
        .is_some_and(|b| b == b'_' || b.is_ascii_alphabetic())
        && bytes.all(|b| b == b'_' || b.is_ascii_alphanumeric())
        && name.len() <= 128;
    let value_fits =
        var.value.len() <= 8192 && !var.value.chars().any(|c| c.is_control() && c != '\t');
    (name_fits && value_fits)
        .then_some(())
        .ok_or_else(|| Refusal::bad("invalid env"))
}

pub(super) fn check_env_count(count: usize) -> Result<(), Refusal> {
    (count <= 64)
        .then_some(())
        .ok_or_else(|| Refusal::bad("more than 64 env entries"))
}

/// A name that a caller chooses: of a template or a checkpoint.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    let mut bytes = name.bytes();
    let fits = name.len() <= 63
        && bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"._:/-".contains(&b));
    fits.then_some(())
        .ok_or_else(|| Refusal::bad("invalid name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn claim(generation: Generation, body: &str, expected: Result<&str, &str>) {
        let checked = lenient::<ClaimBody>(body.as_bytes())
            .and_then(|mut body| body.check(generation).map(|()| body.template))
            .map_err(|refusal| refusal.text);
        assert_eq!(
            checked.as_deref().map_err(String::as_str),
            expected,
            "{body}"
        );
    }

    #[test]
    fn a_claim_body_is_lenient_and_its_values_are_not() {
        use Generation::{A, B};
        claim(B, r#"{"template":"t","later":1,"metadata":null}"#, Ok("t"));
        claim(B, r#"{"template":7}"#, Err("invalid request body"));
        claim(B, "", Err("invalid request body"));
        claim(B, r#"{"metadata":{"a=b":"c"}}"#, Err("invalid metadata"));
        claim(A, r#"{"metadata":{"a=b":"c"}}"#, Ok(""));
        claim(
            B,
            r#"{"on_expire":"keep"}"#,
            Err("on_expire must be destroy or archive"),
        );
        claim(B, r#"{"env":{"1A":{"value":"x"}}}"#, Err("invalid env"));
        claim(
            B,
            r#"{"env":{"A":{"value":"x","guest":null}}}"#,
            Err("invalid request body"),
        );
        claim(B, r#"{"volumes":[{"name":"data"}]}"#, Err("unknown volume"));
    }

    #[test]
    fn a_strict_body_names_the_field_that_it_does_not_know() {
        let refused =
            strict::<PoolsBody>(br#"{"pools":[{"template":"t","warm":1,"warmup":true}]}"#)
                .unwrap_err();
        assert!(refused.text.contains("warmup"), "{}", refused.text);
    }

    #[test]
    fn names_follow_the_daemons_pattern() {
        for (name, fits) in [
            ("a", true),
            ("team/py:3.12-x_y", true),
            ("", false),
            ("-a", false),
            ("a b", false),
        ] {
            assert_eq!(check_name(name).is_ok(), fits, "{name:?}");
        }
        assert!(check_name(&"a".repeat(64)).is_err());
    }
}
