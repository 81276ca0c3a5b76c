//! The names and uids of sandboxes, which every replica and every restart derives alike.

use compact_str::{CompactString, format_compact};
use uuid::Uuid;

use crate::{
    api::{ClaimId, NodeName, SandboxKey},
    meta::{is_dns1123_label, is_dns1123_subdomain},
};

/// Namespace of a claim that names none.
const DEFAULT_NAMESPACE: &str = "default";

/// Namespace of the uids. Chosen once; changing it changes the uid of every sandbox there is.
const UID_NAMESPACE: Uuid = Uuid::from_u128(0x5e1c_7a0e_3d3b_5b0f_9a51_0d9f_4c2a_7e66);

/// Whether `name` can name a Sandbox.
pub fn is_sandbox_name(name: &str) -> bool {
    is_dns1123_subdomain(name)
}

/// The key that a claim reference asks for: `<namespace>/<name>`, or `<name>` in `default`; `None` when it names nothing
/// that could be a Kubernetes object.
pub fn key_of_claim_ref(claim_ref: &str) -> Option<SandboxKey> {
    let (namespace, name) = claim_ref
        .split_once('/')
        .unwrap_or((DEFAULT_NAMESPACE, claim_ref));
    (is_dns1123_label(namespace) && is_sandbox_name(name)).then(|| SandboxKey::new(namespace, name))
}

/// The namespace of a claim whose reference gives no usable name.
pub(super) fn namespace_of_claim_ref(claim_ref: &str) -> &str {
    claim_ref
        .split_once('/')
        .map(|(namespace, _)| namespace)
        .filter(|n| is_dns1123_label(n))
        .unwrap_or(DEFAULT_NAMESPACE)
}

/// The name that a claim id gives: `sb_ab12` is `sb-ab12`. An id that makes no DNS name gives one from its hash.
pub fn id_name(claim: &ClaimId) -> CompactString {
    let plain: CompactString = claim
        .as_str()
        .chars()
        .map(|c| {
            if c == '_' {
                '-'
            } else {
                c.to_ascii_lowercase()
            }
        })
        .collect();
    if is_dns1123_label(&plain) {
        return plain;
    }
    let hash = Uuid::new_v5(&UID_NAMESPACE, claim.as_str().as_bytes());
    format_compact!("sb-{}", hash.simple())
}

/// A second choice when the id's name is another sandbox's: the same with a part of the uid.
pub(super) fn distinct_id_name(claim: &ClaimId, uid: Uuid) -> CompactString {
    let mut name = id_name(claim);
    name.truncate(50);
    format_compact!("{name}-{}", &uid.simple().to_string()[..12])
}

/// The uid of the sandbox with this id on this node.
pub fn uid_of(node: &NodeName, claim: &ClaimId) -> Uuid {
    let name = [node.as_str(), "/", claim.as_str()].concat();
    Uuid::new_v5(&UID_NAMESPACE, name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_ref_names_an_object_or_nothing() {
        let key = |claim_ref| key_of_claim_ref(claim_ref).map(|key| key.to_string());
        assert_eq!(key("team/box").as_deref(), Some("team/box"));
        assert_eq!(key("box").as_deref(), Some("default/box"));
        for bad in ["", "/", "a/", "/a", "A/b", "a/B", "a/b/c", "a/b c", "../x"] {
            assert_eq!(key(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn an_id_always_gives_a_name() {
        assert_eq!(id_name(&"sb_ab12".into()), "sb-ab12");
        for odd in ["", "_", "ß", "a/b", "x y", &"x".repeat(300)] {
            assert!(is_dns1123_label(&id_name(&odd.into())), "{odd:?}");
        }
        assert_ne!(id_name(&"a/b".into()), id_name(&"a/c".into()));
    }

    #[test]
    fn uids_depend_on_node_and_id_alone() {
        let uid = uid_of(&"node-1".into(), &"sb_ab12".into());
        assert_eq!(
            uid.to_string(),
            uid_of(&"node-1".into(), &"sb_ab12".into()).to_string()
        );
        assert_ne!(uid, uid_of(&"node-2".into(), &"sb_ab12".into()));
        assert_eq!(uid.get_version_num(), 5);
    }
}
