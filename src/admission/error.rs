//! Why nothing is created.

use std::time::Duration;

/// Why nothing may be created in a namespace.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// There is no such namespace: 404 on resource `namespaces`.
    #[error("namespaces {0:?} not found")]
    NotFound(String),
    /// The namespace is being deleted: 403 with cause `NamespaceTerminating`.
    #[error("unable to create new content in namespace {0} because it is being terminated")]
    Terminating(String),
    /// kube-apiserver does not say whether the namespace exists: 500, and nothing was done.
    #[error("cannot find out whether namespace {namespace:?} exists")]
    Unknown {
        /// The namespace.
        namespace: String,
        /// What the client said.
        #[source]
        source: kube::Error,
    },
    /// kube-apiserver does not answer: 500, and nothing was done.
    #[error("kube-apiserver did not say within {after:?} whether namespace {namespace:?} exists")]
    Silent {
        /// The namespace.
        namespace: String,
        /// How long was waited.
        after: Duration,
    },
}

/// A quota of the namespace does not allow it: 403.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "exceeded quota: {quota}, requested: {resource}={}, used: {resource}={}, limited: {resource}={allowed}",
    count_text(*n_wanted),
    count_text(*n_used)
)]
pub struct Exceeded {
    /// The quota.
    pub quota: String,
    /// What it counts: `count/sandboxes.agents.x-k8s.io`.
    pub resource: String,
    /// Objects that were wanted.
    pub n_wanted: u64,
    /// Objects that there are, or that are being made.
    pub n_used: u64,
    /// Objects that it allows, as it says it.
    pub allowed: String,
}

/// A number as Kubernetes writes a quantity without a unit: 2000 is `2k`.
fn count_text(mut number: u64) -> String {
    let mut suffixes = ["", "k", "M", "G", "T", "P", "E"].into_iter();
    let mut suffix = suffixes.next().unwrap_or_default();
    while number > 0 && number.is_multiple_of(1_000) {
        number /= 1_000;
        suffix = suffixes.next().unwrap_or_default();
    }
    format!("{number}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_written_as_quantities() {
        for (number, expected) in [
            (0, "0"),
            (7, "7"),
            (1_500, "1500"),
            (2_000, "2k"),
            (u64::MAX, "18446744073709551615"),
            (3_000_000, "3M"),
            (10_000_000_000_000_000_000, "10E"),
        ] {
            assert_eq!(count_text(number), expected);
        }
    }
}
