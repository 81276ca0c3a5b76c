//! The map in `src/lib.rs` is true: rooms import what their row says, and nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Rooms without a clock, a runtime and a log.
const PURE: [&str; 5] = ["meta", "api", "store", "schema", "fleet"];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The rooms that each room may import, from the table.
fn map() -> BTreeMap<String, BTreeSet<String>> {
    let lib = fs::read_to_string(src().join("lib.rs")).unwrap();
    let rows = lib.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let mut map: BTreeMap<String, BTreeSet<String>> = rows
        .map(|row| {
            let columns: Vec<_> = row.trim_end_matches('|').split('|').collect();
            let name = columns[0].trim().trim_end_matches('`');
            let imports = columns.last().unwrap().split('`').skip(1).step_by(2);
            (name.to_owned(), imports.map(str::to_owned).collect())
        })
        .collect();
    let rooms: BTreeSet<_> = map.keys().cloned().collect();
    for (room, imports) in &mut map {
        if !PURE.contains(&room.as_str()) {
            imports.insert("telemetry".to_owned());
        }
        if room == "cli" {
            imports.extend(rooms.iter().cloned());
        }
        imports.insert(room.clone());
    }
    map
}

/// The source files of a room.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// A file without its comments and without the module of its tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether the file is a test, or stands in a folder of them.
fn is_test(file: &Path) -> bool {
    let place = file.strip_prefix(src()).unwrap().with_extension("");
    let mut names = place.iter().map(|name| name.to_str().unwrap());
    names.any(|name| name == "hostile" || name.ends_with("tests"))
}

/// Where a pure room offers its callers a moment to pass in.
fn is_clock(file: &Path) -> bool {
    file.ends_with("meta/time.rs") || file.ends_with("fleet/report.rs")
}

/// The rooms that stand behind `crate::` in a text, also in groups.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(group) => found.extend(heads(group)),
            None => drop(found.insert(word(rest))),
        }
    }
    found
}

/// The first word of each member of a `use` group.
fn heads(group: &str) -> Vec<String> {
    let (mut depth, mut found, mut start) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(word(group[start..at].trim()));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(word(group[start..at].trim()));
                start = at + 1;
            }
            _ => {}
        }
    }
    found.retain(|head| !head.is_empty());
    found
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| is_word(*c)).collect()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[test]
fn every_room_is_on_the_map() {
    let mut rooms: Vec<_> = fs::read_dir(src())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    rooms.sort();
    assert_eq!(rooms, map().into_keys().collect::<Vec<_>>());
}

#[test]
fn rooms_import_what_their_row_says() {
    let map = map();
    for (room, allowed) in &map {
        for file in files(&src().join(room))
            .iter()
            .filter(|file| !is_test(file))
        {
            for import in imports(&code(file)) {
                assert!(
                    allowed.contains(&import) || !map.contains_key(&import),
                    "{} imports {import}",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn nobody_imports_the_command_line_and_only_it_the_simulation() {
    for (room, allowed) in map() {
        assert!(room == "cli" || !allowed.contains("cli"), "{room}");
        assert!(
            ["cli", "sim"].contains(&room.as_str()) || !allowed.contains("sim"),
            "{room}"
        );
    }
}

#[test]
fn the_map_has_no_way_round() {
    let map = map();
    let mut left: BTreeMap<_, BTreeSet<_>> = map
        .iter()
        .map(|(room, allowed)| {
            (
                room,
                allowed.iter().filter(|other| *other != room).collect(),
            )
        })
        .collect();
    // Taken away are the rooms that import nothing that is left.
    while let Some(room) = left
        .iter()
        .find(|(_, wants)| wants.is_empty())
        .map(|(r, _)| *r)
    {
        left.remove(room);
        for wants in left.values_mut() {
            wants.remove(room);
        }
    }
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn pure_rooms_never_read_a_clock_and_never_wait() {
    for room in PURE {
        for file in files(&src().join(room))
            .iter()
            .filter(|file| !is_test(file))
        {
            let code = code(file);
            for word in [
                "::now()",
                ".await",
                "async fn",
                "tokio::time",
                "tokio::spawn",
                "tracing::",
            ] {
                // A method such as `.awaits_release()` waits for nothing.
                let mut found = code.split(word).skip(1);
                let found = found.any(|rest| word != ".await" || !rest.starts_with(is_word));
                assert!(
                    !found || (word == "::now()" && is_clock(file)),
                    "{}: {word}",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn the_client_of_kubernetes_is_where_the_cluster_is_asked() {
    let allowed = [
        "admission",
        "auth",
        "certificate",
        "claims",
        "cli",
        "controller",
        "inventory",
        "ledger",
        "sequencer",
        "node",
        "sim",
        "warmpool",
    ];
    for room in map()
        .keys()
        .filter(|room| !allowed.contains(&room.as_str()))
    {
        for file in files(&src().join(room)) {
            let code = code(&file);
            assert!(!code.contains("kube::"), "{}", file.display());
        }
    }
}

#[test]
fn the_reader_of_imports_reads_groups() {
    let code = "use crate::{\n    api::{A, B},\n    meta,\n    store::{self, x::{Y, Z}},\n};\nuse crate::auth::C;\nlet d = crate::fleet::d();";
    let expected = ["api", "auth", "fleet", "meta", "store"];
    assert_eq!(imports(code), expected.map(str::to_owned).into());
}
