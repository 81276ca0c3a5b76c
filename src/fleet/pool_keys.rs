//! What the sandboxes of a node were made from: each key once, however many sandboxes have it.

use std::{collections::HashSet, sync::Arc};

use crate::api::PoolKey;

/// Keys are looked through for those that no sandbox has any more when there are twice as many as after the last time, and not
/// before there are so many.
const FEW: usize = 16;

/// The keys of a node, shared by its sandboxes.
#[derive(Debug, Default)]
pub(super) struct PoolKeys {
    shared: HashSet<Arc<PoolKey>>,
    /// How many were left the last time.
    left: usize,
}

impl PoolKeys {
    /// The one that is equal to `key`.
    pub(super) fn share(&mut self, key: &PoolKey) -> Arc<PoolKey> {
        if let Some(shared) = self.shared.get(key) {
            return shared.clone();
        }
        if self.shared.len() >= FEW.max(2 * self.left) {
            self.shared.retain(|shared| Arc::strong_count(shared) > 1);
            self.left = self.shared.len();
        }
        let shared = Arc::new(key.clone());
        self.shared.insert(shared.clone());
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_key(number: usize) -> PoolKey {
        PoolKey {
            template: format!("t-{number}").into(),
            net: "none".into(),
            size: "small".into(),
        }
    }

    #[test]
    fn equal_keys_are_one_and_what_nobody_has_is_forgotten() {
        let mut keys = PoolKeys::default();
        let kept: Vec<_> = (0..100).map(|number| keys.share(&mk_key(number))).collect();
        assert!(Arc::ptr_eq(&kept[7], &keys.share(&mk_key(7))));
        assert_eq!(keys.shared.len(), 100);
        for number in 100..10_000 {
            keys.share(&mk_key(number));
        }
        assert!(keys.shared.len() <= 2 * (kept.len() + FEW));
        assert!(Arc::ptr_eq(&kept[7], &keys.share(&mk_key(7))));
    }
}
