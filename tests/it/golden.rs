//! Documents that are reviewed as they are: `UPDATE_GOLDEN=1` rewrites them, the difference is what a change did.

use std::{fs, path::Path};

use serde_json::Value;

/// Compares a document with `tests/golden/<name>`, or writes it there.
#[track_caller]
pub(crate) fn check(name: &str, found: &Value) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    let text = serde_json::to_string_pretty(found).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        return;
    }
    let known = fs::read_to_string(&file).unwrap_or_default();
    if let Some((line, (known, found))) = known
        .lines()
        .chain(std::iter::repeat("(end)"))
        .zip(text.lines())
        .enumerate()
        .find(|(_, (known, found))| known != found)
    {
        let line = line + 1;
        panic!("{name}:{line}: expected {known:?}, found {found:?}");
    }
    assert_eq!(known.len(), text.len(), "{name} has more lines");
}
