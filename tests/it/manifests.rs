//! The shipped manifests ask of the server what it does.

use std::{collections::BTreeSet, fs};

use sandbox_apiserver::resources::sandbox_definition;

/// An APIService for a version that is not served is never available, and holds up the deletion of every namespace.
#[test]
fn every_version_that_is_registered_is_served() {
    let manifest = fs::read_to_string("apiservice/50-apiservice.yaml").unwrap();
    let registered: BTreeSet<_> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("  version: "))
        .collect();
    let definition = sandbox_definition().unwrap();
    let served: BTreeSet<_> = definition
        .versions
        .iter()
        .map(|version| version.name)
        .collect();
    assert_eq!(registered, served);
}
