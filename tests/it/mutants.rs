//! The faults that `hack/mutants` plants: they must still be there to plant.

use std::{collections::BTreeSet, fs};

use serde_json::Value;

#[test]
fn every_mutant_has_its_place_in_the_source() {
    let root = env!("CARGO_MANIFEST_DIR");
    let mut names = BTreeSet::new();
    for list in fs::read_dir(format!("{root}/tests/mutants")).unwrap() {
        let path = list.unwrap().path();
        let list: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for mutant in list["mutants"].as_array().unwrap() {
            let text = |key: &str| mutant[key].as_str().unwrap();
            let name = text("name");
            assert!(
                names.insert((path.clone(), name.to_owned())),
                "{name}: twice"
            );
            assert!(text("says").ends_with('.'), "{name}: no sentence");
            assert!(
                text("file").starts_with("src/"),
                "{name}: not of the product"
            );
            let source = fs::read_to_string(format!("{root}/{}", text("file"))).unwrap();
            let places = source.matches(text("find")).count();
            assert_eq!(places, 1, "{name}: its text has to be there once");
            assert_ne!(text("find"), text("replace"), "{name}: changes nothing");
        }
    }
    assert!(!names.is_empty());
}
