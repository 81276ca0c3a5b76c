//! Quotas over a store that fills up.

use std::sync::Arc;

use kube::runtime::watcher::Event;
use serde_json::json;

use super::{Counted, Exceeded, QuotaReservation, Quotas, Wanted, limits::tests::mk_quota};
use crate::{
    meta::ResourceVersion,
    store::{Change, Key, Limits, Store, Value},
};

const SANDBOXES: Counted<'_> = Counted {
    group: "agents.x-k8s.io",
    plural: "sandboxes",
};

#[derive(Debug)]
struct Named(String);

impl Value for Named {
    fn namespace(&self) -> &str {
        "team"
    }

    fn name(&self) -> &str {
        &self.0
    }

    fn weight(&self) -> usize {
        1
    }
}

/// A namespace with a quota.
struct Case {
    quotas: Quotas,
    store: Store<Named>,
}

impl Case {
    fn new(allowed: u32) -> Self {
        let case = Self {
            quotas: Quotas::follow_nobody(),
            store: Store::new(
                ResourceVersion::first_of_epoch(1).unwrap(),
                Limits::default(),
            ),
        };
        case.set(allowed);
        case
    }

    fn set(&self, allowed: u32) {
        let hard = json!({"count/sandboxes.agents.x-k8s.io": allowed.to_string()});
        let quota = mk_quota("q", json!({"hard": hard}));
        self.quotas.tell(Event::Apply(quota));
    }

    fn admit(&self, name: &str, wanted: Wanted) -> Result<QuotaReservation, Exceeded> {
        let key = Key::new("team", name);
        self.quotas.admit(SANDBOXES, &key, wanted, &self.store)
    }

    fn put(&self, name: &str) {
        self.store.put(Named(name.to_owned()));
    }

    #[track_caller]
    fn check_used(&self, expected: u64) {
        // More than any quota allows, so that it says what is used.
        let exceeded = self.admit("parent", Wanted::Copies(u32::MAX)).unwrap_err();
        assert_eq!(exceeded.n_used, expected);
    }
}

#[test]
fn what_is_being_made_counts_and_is_given_back_when_it_fails() {
    let case = Case::new(2);
    let one = case.admit("a", Wanted::New).unwrap();
    let other = case.admit("b", Wanted::New).unwrap();
    assert!(case.admit("c", Wanted::New).is_err());
    drop(one);
    case.check_used(1);
    let again = case.admit("c", Wanted::New).unwrap();
    let clone = other.clone();
    drop(other);
    case.check_used(2);
    drop((again, clone));
    case.check_used(0);
}

#[test]
fn what_is_listed_before_its_right_is_given_back_counts_once() {
    let case = Case::new(2);
    let one = case.admit("a", Wanted::New).unwrap();
    case.put("a");
    case.check_used(1);
    let other = case.admit("b", Wanted::New).unwrap();
    drop(one);
    case.check_used(2);
    drop(other);
    case.check_used(1);
}

#[test]
fn creates_that_race_for_one_name_count_as_one_object() {
    let case = Case::new(3);
    let racing = [(); 2].map(|()| case.admit("a", Wanted::New).unwrap());
    case.check_used(1);
    let [winner, loser] = racing;
    drop(loser);
    case.check_used(1);
    drop(winner);
    case.check_used(0);
}

#[test]
fn a_name_that_is_taken_needs_room_for_a_new_object_and_not_for_a_known_one() {
    let case = Case::new(1);
    case.put("a");
    assert!(case.admit("a", Wanted::New).is_err());
    assert!(case.admit("a", Wanted::NewOrKnown).is_ok());
    assert!(case.admit("b", Wanted::NewOrKnown).is_err());
    case.set(2);
    let made = case.admit("b", Wanted::NewOrKnown).unwrap();
    let joined = case.admit("b", Wanted::NewOrKnown).unwrap();
    case.check_used(2);
    drop(made);
    // Who joined may have to do it.
    case.check_used(2);
    drop(joined);
    case.check_used(1);
}

#[test]
fn copies_are_admitted_together_and_count_once_when_their_names_are_told() {
    let case = Case::new(3);
    let copies = case.admit("parent", Wanted::Copies(3)).unwrap();
    assert!(case.admit("parent", Wanted::Copies(1)).is_err());
    for name in ["x", "y"] {
        copies.name(name);
        case.put(name);
        case.check_used(3);
    }
    drop(copies);
    case.check_used(2);
    assert!(case.admit("parent", Wanted::Copies(2)).is_err());
    // One name more than was asked for changes nothing.
    let one = case.admit("parent", Wanted::Copies(1)).unwrap();
    one.name("z");
    one.name("zz");
    case.check_used(3);
}

#[test]
fn a_quota_that_is_lowered_below_what_there_is_refuses_until_enough_is_gone() {
    let case = Case::new(9);
    ["a", "b", "c"].into_iter().for_each(|name| case.put(name));
    case.set(1);
    let exceeded = case.admit("d", Wanted::New).unwrap_err();
    assert_eq!((exceeded.n_used, exceeded.allowed.as_str()), (3, "1"));
    let delete = |name| Change::Delete(Key::new("team", name));
    case.store.commit([delete("a"), delete("b"), delete("c")]);
    assert!(case.admit("d", Wanted::New).is_ok());
    case.set(0);
    assert!(case.admit("d", Wanted::New).is_err());
}

#[test]
fn without_a_quota_nothing_is_counted() {
    let case = Case::new(0);
    let admit = |quotas: &Quotas, namespace| {
        let key = Key::new(namespace, "a");
        quotas.admit(SANDBOXES, &key, Wanted::New, &case.store)
    };
    let elsewhere = admit(&case.quotas, "elsewhere");
    assert!(!elsewhere.unwrap().is_counted());
    let nobody = admit(&Quotas::none(), "team");
    assert!(!nobody.unwrap().is_counted());
}

#[test]
fn creates_on_many_threads_make_exactly_as_many_as_are_allowed() {
    const ALLOWED: u32 = 20;
    let case = Arc::new(Case::new(ALLOWED));
    let threads = (0..8).map(|thread| {
        let case = case.clone();
        std::thread::spawn(move || {
            let made = (0..50).filter(|number| {
                let name = format!("{thread}-{number}");
                let reserved = case.admit(&name, Wanted::New);
                // Every third create fails, and leaves its place to another one.
                let succeeds = reserved.is_ok() && number % 3 != 0;
                if succeeds {
                    case.put(&name);
                }
                succeeds
            });
            made.count()
        })
    });
    let threads: Vec<_> = threads.collect();
    let made: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
    assert_eq!(made, ALLOWED as usize);
    case.check_used(u64::from(ALLOWED));
}
