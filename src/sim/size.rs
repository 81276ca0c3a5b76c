//! Size classes and the rules for a pool key.

use super::Refusal;
use crate::api::PoolKey;

const GIB: u64 = 1 << 30;
/// Name, CPUs, bytes of memory.
const SIZES: [(&str, u32, u64); 5] = [
    ("small", 1, GIB / 2),
    ("medium", 2, GIB),
    ("large", 4, 4 * GIB),
    ("xlarge", 4, 8 * GIB),
    ("2xlarge", 8, 16 * GIB),
];

/// CPUs and memory of a size class; of an unknown one, nothing.
pub(super) fn resources(size: &str) -> (u32, u64) {
    SIZES
        .iter()
        .find(|(name, ..)| *name == size)
        .map_or((0, 0), |&(_, cpus, memory)| (cpus, memory))
}

/// The key with its defaults, or the axis that is wrong.
pub(super) fn pool_key(template: &str, net: &str, size: &str) -> Result<PoolKey, Refusal> {
    let or = |text: &str, default: &'static str| {
        if text.is_empty() {
            default.into()
        } else {
            text.into()
        }
    };
    let key = PoolKey {
        template: template.into(),
        net: or(net, PoolKey::DEFAULT_NET),
        size: or(size, PoolKey::DEFAULT_SIZE),
    };
    if key.template.is_empty() {
        return Err(Refusal::bad("template is required"));
    }
    if !matches!(key.net.as_str(), "none" | "egress") {
        return Err(Refusal::bad("net must be none or egress"));
    }
    if resources(&key.size).0 == 0 {
        return Err(Refusal::bad("unknown size"));
    }
    Ok(key)
}
