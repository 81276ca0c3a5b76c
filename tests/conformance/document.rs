//! `docs/conformance.md`, made from the items.

use std::fmt::Write as _;

use super::{
    SECTIONS,
    item::{Item, Standing},
};

/// Where `hack/generate` wants the document.
const WRITE_TO: &str = "CONFORMANCE_DOCUMENT";

const HEAD: &str = "\
<!-- Written by hack/generate from the lists in tests/conformance. -->

# What a built-in API does, item by item

The items say what a server has to do so that kubectl, client-go and the controllers of Kubernetes 1.37 work with it as with a
built-in API. P0: clients break without it. P1: expected of a good server. P2: excellent.

Each is a test of its own, `tests/conformance/`, that runs against the server behind a real kube-apiserver, and is run once more
against a stub that answers `200 {}` to everything, where it has to fail.

    hack/conformance                  the table with results, and the totals
    hack/conformance C-118 C-119      some of them
    hack/conformance --against crd    the same requests to a custom resource of the same schema

Under *Of*: `any` can be asked of any resource, `own` is about this server's own process, port, nodes or manifests. Where the
answers differ from those of a custom resource on purpose is listed in [differences.md](differences.md).
";

fn id_and_row(item: &Item) -> String {
    let (of, title) = match item.standing {
        Standing::Compared => ("any", item.title.to_owned()),
        Standing::Ours => ("own", item.title.to_owned()),
        Standing::Later(why) => ("later", format!("{} *{why}*", item.title)),
        Standing::Left(why) => ("left out", format!("{} *{why}*", item.title)),
    };
    format!("| {} | {:?} | {of} | {title} |\n", item.id(), item.priority)
}

fn document() -> String {
    let mut text = HEAD.to_owned();
    for (heading, items) in SECTIONS {
        let columns = "| Item | Priority | Of | What |\n|---|---|---|---|\n";
        write!(text, "\n## {heading}\n\n{columns}").unwrap();
        items
            .iter()
            .for_each(|item| text.push_str(&id_and_row(item)));
    }
    text
}

#[test]
fn the_document_is_that_of_the_items() {
    if let Some(path) = std::env::var_os(WRITE_TO) {
        return std::fs::write(path, document()).unwrap();
    }
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/conformance.md");
    let committed = std::fs::read_to_string(committed).unwrap();
    assert!(document() == committed, "out of date: run hack/generate");
}

#[test]
fn ids_are_in_order_and_titles_are_sentences() {
    let items: Vec<&Item> = SECTIONS.iter().flat_map(|(_, items)| *items).collect();
    assert!(
        items.is_sorted_by(|a, b| a.function < b.function),
        "in order, none twice"
    );
    for item in items {
        let digits = item.function.strip_prefix("c_").unwrap_or_default();
        assert!(
            digits.len() == 3 && digits.parse::<u16>().is_ok(),
            "{}",
            item.function
        );
        assert!(
            item.title.ends_with('.') && !item.title.contains(['|', '\n']),
            "{}",
            item.title
        );
    }
}
