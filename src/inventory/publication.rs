//! One `NodeInventory`, read as far as it can be.

use std::hash::{DefaultHasher, Hash, Hasher};

use compact_str::CompactString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};

use super::{
    Error, Result,
    entries::{Entries, Pools, Releases},
    fields::{MAX_WORD, time, word},
    lenient::{Fields, Scalar, Shaped},
    rejection::{Reason, Rejections},
};
use crate::{
    api::{NodeInventory, NodeName, partial},
    fleet::{Pool, Report, Row},
    meta::{UnixTime, is_dns1123_subdomain},
};

/// One `NodeInventory`, read as far as it can be.
///
/// Reading never fails for what a field holds: what is bad is left out and counted, and the rest stays.
#[derive(Clone, Debug)]
pub struct Publication {
    /// Name and resource version, and nothing else of it.
    metadata: ObjectMeta,
    pub(super) content: Content,
}

/// What an inventory says.
#[derive(Clone, Debug)]
pub(super) struct Content {
    /// The daemon's address as it was published, to be judged before anything is sent there.
    pub(super) address: Scalar,
    /// When the inventory was made.
    created: Option<UnixTime>,
    pub(super) edition: Edition,
    pub(super) agent: Option<PublishedAgent>,
    rows: Vec<Row>,
    /// `None` when they could not be read.
    pools: Option<Vec<Pool>>,
    /// Whether a sandbox that is not among the rows may be missing on the node.
    complete: bool,
    pub(super) rejections: Rejections,
}

/// Where the node's agent is said to be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PublishedAgent {
    /// Where its feed is, to be judged as the daemon's address is.
    pub(super) address: Scalar,
    #[serde(rename = "certificateSHA256")]
    pub(super) certificate_sha256: Scalar,
}

/// Tells a new publication from an edit of the old one by somebody else than the publisher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Edition {
    observed_at: CompactString,
    /// Hash of the one list that the server writes itself.
    releases: u64,
    /// Hash of what it says of sandboxes and pools; `None` once it was not taken over as a whole.
    content: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Inventory {
    metadata: Shaped<Metadata>,
    address: Scalar,
    observed_at: Scalar,
    total: Scalar,
    truncated: Scalar,
    agent: Shaped<PublishedAgent>,
    entries: Shaped<Entries>,
    pools: Shaped<Pools>,
    releases: Shaped<Releases>,
}

/// The parts of an object's metadata that are read.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    name: Scalar,
    resource_version: Scalar,
    creation_timestamp: Scalar,
}

impl Fields for Inventory {}
impl Fields for Metadata {}
impl Fields for PublishedAgent {}

impl Publication {
    /// Reads an inventory from its JSON.
    ///
    /// # Errors
    /// [`Error::NotJson`] for what is no JSON, or names one key of an object twice.
    pub fn decode(json: &[u8]) -> Result<Self> {
        serde_json::from_slice(json).map_err(Error::NotJson)
    }

    /// The node, if the object's name could be a node's.
    pub fn node(&self) -> Option<NodeName> {
        let name = self.metadata.name.as_deref()?;
        is_dns1123_subdomain(name).then(|| name.into())
    }
}

impl Content {
    /// The report for the index, its address still to be judged. `since` is the creation time of an inventory that does not
    /// tell its own.
    pub(super) fn into_report(self, since: UnixTime) -> Report {
        Report {
            address: None,
            rows: self.rows,
            pools: self.pools,
            complete: self.complete,
            published_since: self.created.unwrap_or(since),
        }
    }
}

impl Edition {
    /// Whether the publisher wrote since `last`, and so was alive. Where it does not say when it looked at its daemon, that
    /// is every change but one of the server's own.
    pub(super) fn is_news_after(&self, last: &Self) -> bool {
        if self.observed_at.is_empty() {
            self.releases == last.releases
        } else {
            self.observed_at != last.observed_at
        }
    }

    /// Whether it says of sandboxes and pools what `last` said, of the same look at the daemon. Two looks within a second have the
    /// same time.
    pub(super) fn repeats(&self, last: &Self) -> bool {
        let of = |edition: &Self| Some((edition.observed_at.clone(), edition.content?));
        of(self).is_some_and(|this| Some(this) == of(last))
    }

    /// Notes that something of it is left open: said again, it is news.
    pub(super) fn leave_open(&mut self) {
        self.content = None;
    }
}

impl<'de> Deserialize<'de> for Publication {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Shaped::<Inventory>::deserialize(deserializer)? {
            Shaped::Is(inventory) => inventory.into(),
            // It has no name, and so is nobody's.
            Shaped::Absent | Shaped::Other => Inventory::default().into(),
        })
    }
}

impl From<Inventory> for Publication {
    fn from(inventory: Inventory) -> Self {
        let (metadata, created) = match &inventory.metadata {
            Shaped::Is(metadata) => (metadata.object_meta(), metadata.created()),
            Shaped::Absent | Shaped::Other => Default::default(),
        };
        Self {
            metadata,
            content: inventory.content(created),
        }
    }
}

impl Inventory {
    fn content(self, created: Option<UnixTime>) -> Content {
        let mut rejections = Rejections::default();
        let entries = self.entries.or_reject(&mut rejections);
        let pools = self.pools.or_reject(&mut rejections);
        if let Some(entries) = &entries {
            rejections.add_all(&entries.rejections);
        }
        if let Some(pools) = &pools {
            rejections.add_all(&pools.rejections);
        }
        // A field that cannot be read may say that the list was cut.
        let whole = matches!(self.truncated, Scalar::Absent | Scalar::Flag(false));
        let complete = whole && entries.as_ref().is_some_and(|e| e.are_all_of(&self.total));
        let rows = entries.unwrap_or_default().rows;
        let pools = pools.map(|pools| pools.pools);
        Content {
            address: self.address,
            created,
            edition: Edition {
                observed_at: word(self.observed_at, MAX_WORD).unwrap_or_default(),
                releases: match self.releases {
                    Shaped::Is(Releases(hash)) => hash,
                    Shaped::Absent | Shaped::Other => 0,
                },
                content: Some(hash_of(&rows, pools.as_deref(), complete)),
            },
            agent: match self.agent {
                Shaped::Is(agent) => Some(agent),
                Shaped::Absent | Shaped::Other => None,
            },
            rows,
            pools,
            complete,
            rejections,
        }
    }
}

fn hash_of(rows: &[Row], pools: Option<&[Pool]>, complete: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    complete.hash(&mut hasher);
    for row in rows {
        (&row.claim, &row.claim_ref, row.phase).hash(&mut hasher);
        (row.deadline, row.claimed_at).hash(&mut hasher);
        (&row.address, &row.pool, &row.from_checkpoint).hash(&mut hasher);
    }
    pools.is_some().hash(&mut hasher);
    for pool in pools.into_iter().flatten() {
        (&pool.key, pool.warm, pool.target).hash(&mut hasher);
    }
    hasher.finish()
}

impl<T: Default> Shaped<T> {
    /// The list, which may be left out when it is empty; `None` when it is none.
    fn or_reject(self, rejections: &mut Rejections) -> Option<T> {
        match self {
            Self::Is(list) => Some(list),
            Self::Absent => Some(T::default()),
            Self::Other => {
                rejections.add(Reason::NoList);
                None
            }
        }
    }
}

impl Metadata {
    /// Name and resource version, which is what a watch needs of an object.
    pub(super) fn object_meta(&self) -> ObjectMeta {
        let owned = |scalar: &Scalar| match scalar {
            Scalar::Text(text) => Some(text.to_string()),
            _ => None,
        };
        ObjectMeta {
            name: owned(&self.name),
            resource_version: owned(&self.resource_version),
            ..ObjectMeta::default()
        }
    }

    fn created(&self) -> Option<UnixTime> {
        time(&self.creation_timestamp, &mut Rejections::default())
    }
}

partial!(Publication, of NodeInventory);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn decode(inventory: &Value) -> Publication {
        Publication::decode(inventory.to_string().as_bytes()).expect("it is JSON")
    }

    /// What is taken of an inventory's body: `id=claim_ref` each, whether it is complete, and what is not taken.
    #[track_caller]
    fn check(mut inventory: Value, expected: &str) {
        inventory["metadata"] = json!({"name": "n1", "resourceVersion": "7"});
        let content = decode(&inventory).content;
        let rows = content.rows.iter();
        let rows: Vec<_> = rows
            .map(|row| format!("{}={}", row.claim, row.claim_ref))
            .collect();
        let rejected = content.rejections.iter();
        let rejected: Vec<_> = rejected
            .map(|(reason, n)| format!("{n} {}", reason.as_str()))
            .collect();
        let complete = if content.complete { "complete" } else { "cut" };
        assert_eq!(
            format!("{} | {complete} | {}", rows.join(" "), rejected.join(", ")),
            expected
        );
    }

    #[test]
    fn a_good_inventory_is_taken_whole() {
        check(
            json!({"entries": [{"id": "sb_1", "name": "a/b"}, {"id": "sb_2", "name": "x", "claimRef": "c/d"}], "total": 2}),
            "sb_1=a/b sb_2=c/d | complete | ",
        );
        check(json!({}), " | complete | ");
        check(json!({"entries": null, "pools": null}), " | complete | ");
        check(
            json!({"entries": [{"id": "sb_1"}], "later": {"x": []}}),
            "sb_1= | complete | ",
        );
    }

    #[test]
    fn a_bad_entry_costs_itself_and_the_meaning_of_absence() {
        let with = |bad: Value| json!({"entries": [{"id": "sb_1"}, bad]});
        check(with(json!({"name": "a/b"})), "sb_1= | cut | 1 no_id");
        check(with(json!({"id": ""})), "sb_1= | cut | 1 no_id");
        check(with(json!({"id": 7})), "sb_1= | cut | 1 wrong_type");
        check(with(json!({"id": "sb 2"})), "sb_1= | cut | 1 characters");
        check(with(json!({"id": "sb_1"})), "sb_1= | cut | 1 duplicate");
        check(
            with(json!({"id": "x".repeat(129)})),
            "sb_1= | cut | 1 too_long",
        );
        check(
            with(json!({"id": "s", "claimRef": "x".repeat(513)})),
            "sb_1= | cut | 1 too_long",
        );
        check(
            with(json!({"id": "s", "addr": "x".repeat(301)})),
            "sb_1= | cut | 1 too_long",
        );
        check(
            with(json!({"id": "s", "phase": ["Running"]})),
            "sb_1= | cut | 1 wrong_type",
        );
        for other in [json!(null), json!("sb_2"), json!(["sb_2"]), json!(2.5)] {
            check(with(other), "sb_1= | cut | 1 wrong_type");
        }
    }

    #[test]
    fn a_bad_time_is_none() {
        let entry = json!({"id": "s", "deadline": "tomorrow", "claimedAt": 17});
        check(json!({"entries": [entry]}), "s= | complete | 2 time");
        let zero = json!({"id": "s", "deadline": "0001-01-01T00:00:00Z", "claimedAt": null});
        check(json!({"entries": [zero]}), "s= | complete | ");
    }

    #[test]
    fn what_may_be_cut_is_not_complete() {
        check(json!({"truncated": true}), " | cut | ");
        check(json!({"truncated": "no"}), " | cut | ");
        check(json!({"total": 1}), " | cut | ");
        check(json!({"total": "none"}), " | cut | ");
    }

    #[test]
    fn entries_that_are_no_list_say_nothing() {
        for entries in [json!({}), json!("x"), json!(1), json!(true)] {
            check(json!({ "entries": entries }), " | cut | 1 no_list");
        }
    }

    #[test]
    fn what_has_no_name_is_nobodys() {
        assert_eq!(decode(&json!([{"name": "n1"}])).node(), None);
        assert_eq!(decode(&json!({"metadata": {"name": "A/b"}})).node(), None);
        assert_eq!(decode(&json!({"metadata": [1]})).node(), None);
        assert!(Publication::decode(b"{\"entries\":[").is_err());
    }

    #[test]
    fn pools_are_bounded_and_named() {
        let pools = json!([{"template": "t", "warm": 3, "target": -1}, {"net": "none"}, {"template": "u", "warm": "3"}, 7]);
        let inventory = decode(&json!({"metadata": {"name": "n1"}, "pools": pools}));
        let content = inventory.content;
        let pools = content.pools.unwrap();
        let shown: Vec<_> = pools
            .iter()
            .map(|p| format!("{} {} {}", p.key, p.warm, p.target))
            .collect();
        assert_eq!(shown, ["t|none|small 3 0"]);
        assert_eq!(content.rejections.iter().map(|(_, n)| n).sum::<u64>(), 3);
        assert!(content.complete, "pools say nothing about sandboxes");
        check(json!({"pools": "many"}), " | complete | 1 no_list");
    }

    #[test]
    fn an_edit_by_the_server_is_no_news() {
        let edition = |value: Value| decode(&value).content.edition;
        let news = |before: Value, after: Value| edition(after).is_news_after(&edition(before));
        assert!(news(json!({}), json!({"entries": [{"id": "a"}]})));
        assert!(!news(json!({}), json!({"releases": ["a"]})));
        let at = |time: &str, releases: &[&str]| json!({"observedAt": time, "releases": releases});
        assert!(!news(at("1", &[]), at("1", &["a"])));
        assert!(news(at("1", &[]), at("2", &["a"])));
    }

    /// JSON that is like an inventory in places, and like nothing in others.
    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "sb_[0-9]|[a-z]{1,3}/[a-z]{1,3}|\\PC{0,12}|2026-01-01T00:00:00Z|x{600}"
                .prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            let key = prop_oneof![
                "metadata|entries|pools|address|truncated|total|releases|observedAt",
                "id|name|phase|claimRef|addr|deadline|template|net|size|claimedAt|fromCheckpoint|warm",
                "\\PC{0,4}",
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(key, inner, 0..6).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_is_published_nothing_is_dropped_in_silence(
            entries in prop::collection::vec(any_value(), 0..8),
            rest in any_value(),
        ) {
            let mut inventory = json!({"metadata": {"name": "n1"}, "entries": entries.clone()});
            if let Value::Object(rest) = &rest {
                for (key, value) in rest.iter().filter(|(key, _)| *key != "entries") {
                    inventory[key] = value.clone();
                }
            }
            let content = decode(&inventory).content;
            let dropped = entries.len() - content.rows.len();
            prop_assert!(!content.complete || dropped == 0);
            let counted: u64 = content.rejections.iter().map(|(_, n)| n).sum();
            prop_assert!(counted >= dropped as u64);
            for row in &content.rows {
                prop_assert!(!row.claim.as_str().is_empty() && row.claim.as_str().len() <= MAX_WORD);
            }
        }

        #[test]
        fn any_json_and_any_bytes_decode_or_fail(value in any_value(), bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&value);
            let _ = Publication::decode(&bytes);
        }
    }
}
