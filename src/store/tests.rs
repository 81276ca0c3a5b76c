//! The store against a plain model: every version's whole state, kept aside.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::meta::ResourceVersion;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Thing {
    key: (&'static str, &'static str),
    content: u32,
}

impl Value for Thing {
    fn namespace(&self) -> &str {
        self.key.0
    }
    fn name(&self) -> &str {
        self.key.1
    }
    fn weight(&self) -> usize {
        100
    }
}

type Model = BTreeMap<(&'static str, &'static str), u32>;

const KEYS: [(&str, &str); 6] = [
    ("a", "x"),
    ("a", "y"),
    ("b", "x"),
    ("b", "y"),
    ("b", "z"),
    ("c", "x"),
];

fn mk_store(events: usize) -> Store<Thing> {
    Store::new(
        ResourceVersion::first_of_epoch(1).unwrap(),
        Limits {
            events,
            weight_bytes: usize::MAX,
        },
    )
}

fn put(index: usize, content: u32) -> Change<Thing> {
    Change::Put(Thing {
        key: KEYS[index],
        content,
    })
}

fn delete(index: usize) -> Change<Thing> {
    Change::Delete(Key::new(KEYS[index].0, KEYS[index].1))
}

/// Reads everything at `at`, `limit` objects a page.
fn read_all(
    store: &Store<Thing>,
    scope: &Scope,
    at: ResourceVersion,
    limit: usize,
) -> Result<Model, Expired> {
    let (mut found, mut after) = (Model::new(), None);
    loop {
        let page = store.page(scope, after.as_ref(), at, limit)?;
        found.extend(
            page.items
                .iter()
                .map(|object| (object.value.key, object.value.content)),
        );
        assert!(
            page.items.iter().all(|object| object.version <= at),
            "no page shows a later change"
        );
        match page.items.last() {
            Some(last) if page.more => {
                after = Some(Key::new(last.value.namespace(), last.value.name()))
            }
            _ => return Ok(found),
        }
    }
}

proptest! {
    #[test]
    fn every_version_in_the_log_reads_as_it_was(
        steps in prop::collection::vec((0..KEYS.len(), prop::option::of(0_u32..3)), 1..60),
        window in 1_usize..40,
        limit in 1_usize..5,
    ) {
        let store = mk_store(window);
        let mut history = vec![(store.head(), Model::new())];
        for (index, content) in steps {
            let change = content.map_or_else(|| delete(index), |content| put(index, content));
            let mut model = history.last().unwrap().1.clone();
            let existed = match content {
                Some(content) => { model.insert(KEYS[index], content); true }
                None => model.remove(&KEYS[index]).is_some(),
            };
            prop_assert_eq!(store.commit([change]).len(), usize::from(existed));
            if existed {
                history.push((store.head(), model));
            }
        }
        for (version, model) in &history {
            let scope = Scope::Namespace("b".into());
            if *version < store.oldest() {
                prop_assert_eq!(read_all(&store, &Scope::All, *version, limit), Err(Expired { oldest: store.oldest() }));
                prop_assert!(store.changes_after(*version, 1).is_err());
                continue;
            }
            prop_assert_eq!(&read_all(&store, &Scope::All, *version, limit).unwrap(), model);
            let narrowed: Model = model.iter().filter(|(key, _)| key.0 == "b").map(|(k, v)| (*k, *v)).collect();
            prop_assert_eq!(read_all(&store, &scope, *version, limit).unwrap(), narrowed);

            let mut replayed = model.clone();
            for event in store.changes_after(*version, usize::MAX).unwrap() {
                match event.after() {
                    Some(after) => { replayed.insert(after.value.key, after.value.content); }
                    None => { replayed.remove(&event.object().value.key); }
                }
            }
            prop_assert_eq!(&replayed, &history.last().unwrap().1, "a watch from any version reaches the present");
        }
    }
}

#[test]
fn versions_are_consecutive_and_name_the_change() {
    let store = mk_store(10);
    let start = store.head();
    let events = store.commit([put(0, 1), put(0, 2), delete(0), delete(0)]);
    let kinds: Vec<_> = events.iter().map(|event| event.kind()).collect();
    assert_eq!(
        kinds,
        [EventKind::Added, EventKind::Modified, EventKind::Deleted]
    );
    assert_eq!(events[2].version(), start.next().next().next());
    assert_eq!(
        events[2].object().version,
        start.next().next(),
        "the last state keeps its own version"
    );
}

#[test]
fn the_log_is_bounded_by_weight() {
    let store = Store::new(
        ResourceVersion::first_of_epoch(1).unwrap(),
        Limits {
            events: 1_000,
            weight_bytes: 2_000,
        },
    );
    for content in 0..100 {
        store.commit([put(0, content)]);
    }
    let kept = store.changes_after(store.oldest(), 1_000).unwrap().len();
    assert!(
        (1..20).contains(&kept),
        "{kept} changes of at least 100 bytes each fit 2 000 bytes"
    );
}

#[test]
fn a_subscriber_sees_the_newest_head() {
    let store = mk_store(10);
    let head_rx = store.subscribe();
    store.commit([put(0, 1), put(1, 1)]);
    assert_eq!(*head_rx.borrow(), store.head());
}

#[test]
fn an_event_is_encoded_once_a_form() {
    let store = mk_store(10);
    let event = &store.commit([put(0, 1)])[0];
    let mut calls = 0;
    for form in [1, 1, 2, 1] {
        event.encoded(form, || {
            calls += 1;
            bytes::Bytes::from(form.to_string())
        });
    }
    assert_eq!(calls, 2);
    assert_eq!(event.encoded(2, || unreachable!()), "2");
}

#[test]
fn forgetting_history_keeps_the_present() {
    let store = mk_store(10);
    let start = store.head();
    store.commit([put(0, 1)]);
    store.forget_history();
    assert!(store.changes_after(start, 10).is_err());
    assert_eq!(
        read_all(&store, &Scope::All, store.head(), 10)
            .unwrap()
            .len(),
        1
    );
    assert_eq!(store.count(&Scope::All), 1);
}

#[test]
fn what_was_deleted_weighs_as_long_as_it_is_remembered() {
    let remembered = |change: fn(u32) -> Change<Thing>| {
        let limits = Limits {
            events: usize::MAX,
            weight_bytes: 100_000,
        };
        let store = Store::new(ResourceVersion::first_of_epoch(1).unwrap(), limits);
        for n in 0..1_000 {
            store.commit([put(0, n), change(n)]);
        }
        store.head().as_u64() - store.oldest().as_u64()
    };
    let (modified, deleted) = (remembered(|n| put(0, n)), remembered(|_| delete(0)));
    assert!(modified < 2_000);
    assert_eq!(deleted, modified);
}

#[test]
fn what_is_amended_is_read_in_place_and_told_nobody() {
    let store = mk_store(10);
    store.commit([put(0, 1), put(1, 1)]);
    let (head, mut head_rx) = (store.head(), store.subscribe());
    head_rx.mark_unchanged();
    let version = store.get("a", "x").unwrap().version;
    let amended = store.amend(Thing {
        key: KEYS[0],
        content: 2,
    });
    let read = store.get("a", "x").unwrap();
    assert_eq!((read.version, read.value.content), (version, 2));
    assert!(Arc::ptr_eq(&amended, &read));
    assert_eq!(store.head(), head);
    assert!(!head_rx.has_changed().unwrap());
}

#[test]
fn what_is_not_there_cannot_be_amended_and_is_put() {
    let store = mk_store(10);
    let head = store.head();
    let put = store.amend(Thing {
        key: KEYS[0],
        content: 2,
    });
    assert!(put.version > head);
    assert_eq!(store.changes_after(head, 10).unwrap().len(), 1);
}
