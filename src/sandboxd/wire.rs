//! The daemon's JSON, field for field.
//!
//! Requests are what this client sends, replies what it reads. In a reply unknown fields are skipped, a field that may be
//! missing is an `Option` or has a default, and everything else is strict: a wrong type, a missing field or an id that could
//! not be an id makes the whole answer malformed. A list that is `null` is empty, as Go writes one.

use std::collections::BTreeMap;

use compact_str::CompactString;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{
    api::{ClaimId, NodeAddress, PoolKey, SnapshotId, Token},
    meta::UnixTime,
};

/// Longest id that is taken from a daemon; its own have some twenty characters.
const MAX_ID: usize = 128;
/// Most pools that are taken from one answer.
const MAX_POOLS: usize = 1_024;
/// Most redirect addresses that are kept; the daemon sends up to three.
const MAX_REDIRECTS: usize = 8;

/// What happens to a sandbox at its deadline. Daemons before generation B know only `destroy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExpire {
    /// The VM and its images go.
    Destroy,
    /// The image moves to the checkpoint store.
    Archive,
}

/// Body of `POST /v1/claim`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClaimRequest {
    /// The pool to take from.
    #[serde(flatten)]
    pub key: PoolKey,
    /// Lease in seconds; 0 is the daemon's default, more than its cap is cut.
    #[serde(skip_serializing_if = "is_zero")]
    pub ttl_seconds: u64,
    /// `<namespace>/<name>`, which the daemon stores and echoes. Not unique there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub claim_ref: String,
    /// The daemon must answer itself instead of naming peers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_redirect: bool,
    /// Only a promoted template will do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub require_promoted: bool,
    /// Generation B: at most 16 pairs, 4 KiB as JSON, fixed for the claim's life. Older daemons ignore it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Generation B: what happens at the deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_expire: Option<OnExpire>,
}

impl ClaimRequest {
    /// A claim on the pool `key` with the daemon's defaults.
    pub fn new(key: PoolKey) -> Self {
        Self {
            key,
            ttl_seconds: 0,
            claim_ref: String::new(),
            no_redirect: false,
            require_promoted: false,
            metadata: BTreeMap::new(),
            on_expire: None,
        }
    }
}

/// Body of `POST /v1/checkpoints/{id}/claim`, which carries no `claim_ref`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckpointClaim {
    /// Lease in seconds; 0 is the daemon's default.
    #[serde(skip_serializing_if = "is_zero")]
    pub ttl_seconds: u64,
    /// The daemon must answer itself instead of naming peers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_redirect: bool,
    /// Generation B: as in a claim.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Generation B: what happens at the deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_expire: Option<OnExpire>,
}

/// Body of `POST /v1/sandboxes/{id}/fork`. The body token is left out: the fleet's token acts by id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForkRequest {
    /// Number of children, 1 up to the daemon's limit.
    pub count: u32,
    /// Lease of each child in seconds; 0 is the daemon's default.
    #[serde(skip_serializing_if = "is_zero")]
    pub ttl_seconds: u64,
    /// A child's `claim_ref` is this and its id; without it a child has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub claim_ref_prefix: String,
}

/// One pool of `PUT /v1/pools`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolSpec {
    /// The pool.
    #[serde(flatten)]
    pub key: PoolKey,
    /// VMs to keep warm; 0 keeps the pool and its image.
    pub warm: u32,
    /// Most VMs under load; 0 for no difference to `warm`.
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub warm_max: u32,
    /// A sandbox without connections hibernates after this; 0 for never.
    #[serde(skip_serializing_if = "is_zero")]
    pub idle_hibernate_seconds: u64,
}

/// Answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// A VM was handed over.
    Granted(ClaimReply),
    /// None here: these nodes may have one. Nothing was claimed.
    Redirect {
        /// Addresses to repeat the claim at, with `no_redirect`. What is no address was left out. Not to be trusted: only
        /// an address that an inventory publishes may be sent a token.
        addresses: Vec<NodeAddress>,
        /// The repeated claim must set `require_promoted`.
        require_promoted: bool,
    },
}

/// A VM that was handed over.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ClaimReply {
    /// Its id.
    #[serde(deserialize_with = "id")]
    pub id: ClaimId,
    /// Its own credential.
    pub token: Token,
    /// End of the granted lease.
    #[serde(default, deserialize_with = "time")]
    pub deadline: Option<UnixTime>,
    /// Where its data plane is reached, when the node advertises that: host and port, or an origin.
    #[serde(default)]
    pub owner_addr: Option<String>,
    /// Content of the promoted template that it was cloned from.
    #[serde(default)]
    pub template_digest: Option<String>,
    /// The checkpoint that it was started from.
    #[serde(default, deserialize_with = "optional_id")]
    pub from_checkpoint: Option<SnapshotId>,
}

/// A row of `GET /v1/sandboxes`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SandboxRow {
    /// Claim id.
    #[serde(deserialize_with = "id")]
    pub id: ClaimId,
    /// The pool that it came from.
    pub key: PoolKey,
    /// End of the lease; of an archived one the end of its retention. None without an end.
    #[serde(default, deserialize_with = "time")]
    pub deadline: Option<UnixTime>,
    /// When it was claimed.
    #[serde(default, deserialize_with = "time")]
    pub claimed_at: Option<UnixTime>,
    /// Its memory is on disk and its VM stopped.
    pub hibernated: bool,
    /// Its image is in the checkpoint store and its VM gone.
    #[serde(default)]
    pub archived: bool,
    /// The checkpoint that it was started from.
    #[serde(default, deserialize_with = "optional_id")]
    pub from_checkpoint: Option<SnapshotId>,
    /// The claim's reference, empty without one.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub claim_ref: CompactString,
    /// Generation B: the claim's metadata.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Generation B: what happens at the deadline; text, since a later daemon may know more.
    #[serde(default)]
    pub on_expire: Option<String>,
    /// Generation B: number of CPUs.
    #[serde(default)]
    pub cpu_count: Option<u32>,
    /// Generation B: memory that the guest may use.
    #[serde(default)]
    pub mem_total_bytes: Option<u64>,
    /// Generation C: why the VM died.
    #[serde(default)]
    pub failed: Option<String>,
}

/// Answer to `GET /v1/sandboxes/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Sandbox {
    /// The row, as in the list.
    #[serde(flatten)]
    pub row: SandboxRow,
    /// The sandbox's credential, on a node with an API token.
    #[serde(default)]
    pub token: Option<Token>,
}

/// Answer to `GET /v1/sandboxes/{id}/stats`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Stats {
    /// Number of CPUs.
    pub cpu_count: u32,
    /// Memory that the guest may use.
    pub mem_total_bytes: u64,
    /// Resident memory of the VM; means something only when measured.
    pub mem_used_bytes: u64,
    /// Whether there is a reading.
    pub mem_used_measured: bool,
    /// Whether it is hibernated.
    pub hibernated: bool,
    /// When it was measured.
    #[serde(default, deserialize_with = "time")]
    pub measured_at: Option<UnixTime>,
}

/// Answer to `GET /v1/info`, `PUT /v1/pools` and both drain routes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Info {
    /// The pools.
    #[serde(deserialize_with = "null_is_empty")]
    pub pools: Vec<PoolInfo>,
    /// All claims, hibernated and archived ones included.
    pub claimed: u64,
    /// Hibernated claims.
    pub hibernated: u64,
    /// Archived claims. Old daemons know none.
    #[serde(default)]
    pub archived: u64,
    /// No new claims are taken.
    #[serde(default)]
    pub draining: bool,
    /// The limit of claims is reached.
    #[serde(default)]
    pub at_capacity: bool,
    /// Addresses of other nodes.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub peers: Vec<String>,
    /// Generation B: promoted templates.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub templates: Vec<TemplateInfo>,
    /// Generation B: what `owner_addr` of a claim says.
    #[serde(default)]
    pub advertise_addr: Option<String>,
}

impl Info {
    /// The pools, with what can be claimed of each: a node at its limit of claims has nothing warm, whatever its pools hold.
    /// Those that are out of all proportion are left out.
    pub fn into_pools(self) -> Vec<PoolInfo> {
        let full = self.at_capacity;
        let sound = self.pools.into_iter().filter(|pool| pool.key.is_sound());
        let claimable = sound.map(|pool| PoolInfo {
            warm: if full { 0 } else { pool.warm },
            ..pool
        });
        claimable.take(MAX_POOLS).collect()
    }
}

/// A pool, in [`Info`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PoolInfo {
    /// The pool.
    pub key: PoolKey,
    /// VMs ready to be claimed.
    pub warm: u32,
    /// VMs being made.
    #[serde(default)]
    pub refilling: u32,
    /// VMs to keep warm.
    pub target: u32,
    /// Whether the image is ready, so that a refill can clone.
    #[serde(default)]
    pub golden: bool,
}

/// A promoted template, in [`Info`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TemplateInfo {
    /// The pool key that claims of it name.
    pub key: PoolKey,
    /// Its content.
    #[serde(default)]
    pub content_digest: Option<String>,
    /// When it was promoted.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<UnixTime>,
}

/// Answer to `POST /v1/sandboxes/{id}/promote`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Promoted {
    /// The pool key that claims of the new template name.
    pub key: PoolKey,
    /// Its content.
    pub content_digest: String,
}

/// A checkpoint on a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CheckpointRecord {
    /// Its id.
    #[serde(deserialize_with = "id")]
    pub id: SnapshotId,
    /// The name that the caller gave it.
    #[serde(default)]
    pub name: Option<String>,
    /// The sandbox that it was taken of.
    #[serde(deserialize_with = "id")]
    pub sandbox_id: ClaimId,
    /// The pool of that sandbox.
    pub key: PoolKey,
    /// When it was taken.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<UnixTime>,
}

/// `{"sandboxes": …}`; a missing list is malformed, since absence of a row means something.
#[derive(Debug, Deserialize)]
pub(super) struct Sandboxes {
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) sandboxes: Vec<SandboxRow>,
}

/// `{"checkpoints": …}`.
#[derive(Debug, Deserialize)]
pub(super) struct Checkpoints {
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) checkpoints: Vec<CheckpointRecord>,
}

/// `{"checkpoint": …}`.
#[derive(Debug, Deserialize)]
pub(super) struct Checkpointed {
    pub(super) checkpoint: CheckpointRecord,
}

/// `{"children": …}`.
#[derive(Debug, Deserialize)]
pub(super) struct Children {
    pub(super) children: Vec<ClaimReply>,
}

/// `{"deadline": …}`.
#[derive(Debug, Deserialize)]
pub(super) struct Renewed {
    pub(super) deadline: UnixTime,
}

/// Body of a renewal.
#[derive(Serialize)]
pub(super) struct Renewal {
    pub(super) ttl_seconds: u64,
}

/// Body of a promotion.
#[derive(Serialize)]
pub(super) struct Promotion<'a> {
    pub(super) template: &'a str,
}

/// Body of a checkpoint.
#[derive(Serialize)]
pub(super) struct Checkpointing<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
}

/// Body of `PUT /v1/pools`.
#[derive(Serialize)]
pub(super) struct Pools<'a> {
    pub(super) pools: &'a [PoolSpec],
}

impl<'de> Deserialize<'de> for Claimed {
    /// A redirect excludes every field of a grant, so an answer with parts of both is refused.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Answer {
            redirect: Option<Vec<String>>,
            #[serde(default)]
            require_promoted: bool,
            #[serde(default, deserialize_with = "optional_id")]
            id: Option<ClaimId>,
            token: Option<Token>,
            #[serde(default, deserialize_with = "time")]
            deadline: Option<UnixTime>,
            owner_addr: Option<String>,
            template_digest: Option<String>,
            #[serde(default, deserialize_with = "optional_id")]
            from_checkpoint: Option<SnapshotId>,
        }
        let answer = Answer::deserialize(deserializer)?;
        match (answer.redirect, answer.id, answer.token) {
            (None, Some(id), Some(token)) => Ok(Self::Granted(ClaimReply {
                id,
                token,
                deadline: answer.deadline,
                owner_addr: answer.owner_addr,
                template_digest: answer.template_digest,
                from_checkpoint: answer.from_checkpoint,
            })),
            (Some(texts), None, None) => Ok(Self::Redirect {
                addresses: texts
                    .iter()
                    .filter_map(|text| text.parse().ok())
                    .take(MAX_REDIRECTS)
                    .collect(),
                require_promoted: answer.require_promoted,
            }),
            _ => Err(de::Error::custom(
                "neither a claim with id and token nor a redirect",
            )),
        }
    }
}

/// An identifier: some printable ASCII, not without end.
fn id<'de, D: Deserializer<'de>, T: From<String>>(deserializer: D) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let sound = (1..=MAX_ID).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    if sound {
        Ok(T::from(text))
    } else {
        Err(de::Error::custom("an id that is no id"))
    }
}

fn optional_id<'de, D: Deserializer<'de>, T: From<String>>(d: D) -> Result<Option<T>, D::Error> {
    struct Id<T>(T);
    impl<'de, T: From<String>> Deserialize<'de> for Id<T> {
        fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            id(d).map(Id)
        }
    }
    Option::<Id<T>>::deserialize(d).map(|found| found.map(|Id(id)| id))
}

/// A time; Go's zero time and `null` are none.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<UnixTime>, D::Error> {
    const YEAR_TWO: UnixTime = UnixTime::from_secs(-62_104_060_800);
    Option::<UnixTime>::deserialize(deserializer).map(|time| time.filter(|time| *time >= YEAR_TWO))
}

fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

fn is_zero(seconds: &u64) -> bool {
    *seconds == 0
}

fn is_zero_u32(count: &u32) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn claimed(answer: Value, expected: Option<&str>) {
        let shown = match serde_json::from_value::<Claimed>(answer.clone()) {
            Ok(Claimed::Granted(reply)) => Some(format!("{} {:?}", reply.id, reply.deadline)),
            Ok(Claimed::Redirect {
                addresses,
                require_promoted,
            }) => Some(format!("{addresses:?} {require_promoted}")),
            Err(_) => None,
        };
        assert_eq!(shown.as_deref(), expected, "{answer}");
    }

    #[test]
    fn a_full_node_has_nothing_warm() {
        let pools = |full: bool| {
            let long = "t".repeat(1_000);
            let pools = ["t", &long, ""]
                .map(|template| json!({"key": {"template": template}, "warm": 3, "target": 4}));
            let info = json!({"pools": pools, "claimed": 1, "hibernated": 0, "at_capacity": full});
            let info: Info = serde_json::from_value(info).unwrap();
            let pools = info.into_pools().into_iter();
            pools
                .map(|pool| (pool.warm, pool.target))
                .collect::<Vec<_>>()
        };
        assert_eq!((pools(false), pools(true)), (vec![(3, 4)], vec![(0, 4)]));
    }

    #[test]
    fn a_claim_is_granted_or_redirected_and_nothing_between() {
        let granted = json!({"id": "sb_1", "token": "t", "deadline": "1970-01-01T00:00:09.9Z", "net_route": "none"});
        claimed(granted, Some("sb_1 Some(UnixTime(9))"));
        claimed(json!({"id": "sb_1", "token": "t"}), Some("sb_1 None"));
        claimed(
            json!({"redirect": ["10.0.0.2:7777", "http://evil/path", "https://n3"], "require_promoted": true}),
            Some("[http://10.0.0.2:7777, https://n3:443] true"),
        );
        claimed(json!({"redirect": []}), Some("[] false"));
        claimed(
            json!({"redirect": ["a:1"], "id": "sb_1", "token": "t"}),
            None,
        );
        claimed(json!({"id": "sb_1"}), None);
        claimed(json!({"id": "", "token": "t"}), None);
        claimed(json!({"id": "a b", "token": "t"}), None);
        claimed(json!({"id": "x".repeat(129), "token": "t"}), None);
        claimed(json!({"id": 7, "token": "t"}), None);
        claimed(json!({}), None);
        claimed(json!([]), None);
    }

    #[test]
    fn a_row_of_each_generation_reads() {
        let key = json!({"template": "python:3.12", "net": "none", "size": "small"});
        let old = json!({"id": "sb_1", "key": key, "deadline": "2026-01-01T00:00:00.5Z", "hibernated": false});
        let row: SandboxRow = serde_json::from_value(old).unwrap();
        assert_eq!(
            (row.claim_ref.as_str(), row.archived, row.claimed_at),
            ("", false, None)
        );
        let new = json!({"id": "sb_1", "key": key, "deadline": "0001-01-01T00:00:00Z", "hibernated": true, "archived": true,
            "claimed_at": "2026-01-01T00:00:00Z", "metadata": {"a": "b"}, "on_expire": "archive", "cpu_count": 1,
            "failed": "vmm died", "tenant": "t", "restarts": 2, "token": "never here", "from_checkpoint": "ck_1"});
        let row: SandboxRow = serde_json::from_value(new).unwrap();
        assert_eq!(
            (row.deadline, row.metadata["a"].as_str(), row.hibernated),
            (None, "b", true)
        );
        assert_eq!(row.failed.as_deref(), Some("vmm died"));
    }

    #[test]
    fn a_list_may_be_null_but_not_missing() {
        let list = |json: &str| {
            serde_json::from_str::<Sandboxes>(json)
                .map(|list| list.sandboxes.len())
                .ok()
        };
        assert_eq!(list(r#"{"sandboxes":null}"#), Some(0));
        assert_eq!(list("{}"), None);
        assert_eq!(list(r#"{"sandboxes":[{"id":"sb_1"}]}"#), None);
    }

    #[test]
    fn a_claim_sends_what_is_set_and_no_more() {
        let key = PoolKey {
            template: "t".into(),
            net: "none".into(),
            size: "small".into(),
        };
        let mut request = ClaimRequest::new(key);
        assert_eq!(
            serde_json::to_value(&request).unwrap(),
            json!({"template": "t", "net": "none", "size": "small"})
        );
        request.ttl_seconds = 60;
        request.claim_ref = "default/a".to_owned();
        request.no_redirect = true;
        request.on_expire = Some(OnExpire::Archive);
        request.metadata.insert("k".to_owned(), "v".to_owned());
        assert_eq!(
            serde_json::to_value(&request).unwrap(),
            json!({"template": "t", "net": "none", "size": "small", "ttl_seconds": 60, "claim_ref": "default/a",
                "no_redirect": true, "on_expire": "archive", "metadata": {"k": "v"}})
        );
    }
}
