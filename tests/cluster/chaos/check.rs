//! What everybody was told, judged by what the nodes did. Nothing that comes later can mend what is found here.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use super::{
    property::{Property, Verdict},
    record::{Call, End, Object, Record, Verb, Vm},
};

pub(super) fn check(record: &Record) -> Verdict {
    let seen = Seen::of(record);
    check_lists(record)?;
    check_versions(record)?;
    check_answers(record)?;
    check_names(record)?;
    check_ends(record, &seen)?;
    check_deletes(record)?;
    check_missing(record, &seen)?;
    check_spent(record)?;
    check_pauses(record)
}

/// Under which uid and which names each VM was seen.
pub(super) struct Seen(HashMap<String, (String, BTreeSet<String>)>);

impl Seen {
    pub(super) fn of(record: &Record) -> Self {
        let mut seen: HashMap<String, (String, BTreeSet<String>)> = HashMap::new();
        let items = record.calls.iter().filter_map(Call::items).flatten();
        let objects = record.calls.iter().filter_map(Call::object).chain(items);
        for object in objects {
            let entry = seen.entry(object.claim).or_default();
            entry.0 = object.uid;
            entry.1.insert(object.name);
        }
        Self(seen)
    }

    /// Whether the call, a delete, may have ended this VM by then.
    pub(super) fn may_end(&self, call: &Call, vm: &Vm, by: Timestamp) -> bool {
        let known = self.0.get(&vm.id);
        let has_name = vm.name == call.name || known.is_some_and(|it| it.1.contains(&call.name));
        let names_it = match &call.verb {
            Verb::Delete(Some(uid)) => known.is_some_and(|it| it.0 == *uid),
            Verb::Delete(None) => has_name,
            _ => false,
        };
        names_it && call.touches(vm.began, by)
    }

    fn may_be_deleted(&self, record: &Record, vm: &Vm, by: Timestamp) -> bool {
        record.calls.iter().any(|call| self.may_end(call, vm, by))
    }
}

fn check_lists(record: &Record) -> Verdict {
    let lists = record.calls.iter().filter(|call| call.verb == Verb::List);
    for items in lists.filter_map(Call::items) {
        let distinct = |key: fn(&Object) -> &str| {
            let keys: BTreeSet<_> = items.iter().map(key).collect();
            keys.len() == items.len()
        };
        let what = || format!("listed: {items:#?}");
        Property::UniqueNames.demand(distinct(|it| &it.name), what)?;
        Property::OneOwner.demand(distinct(|it| &it.claim) && distinct(|it| &it.uid), what)?;
    }
    Ok(())
}

fn check_versions(record: &Record) -> Verdict {
    let lists = record.calls.iter().filter(|call| call.verb == Verb::List);
    let mut lists: Vec<_> = lists
        .filter_map(|call| Some((call, call.items().and(call.version())?)))
        .collect();
    lists.sort_by_key(|(call, _)| call.ended);
    for (index, (call, version)) in lists.iter().enumerate() {
        let earlier = lists[..index].iter();
        let earlier = earlier.filter(|(earlier, _)| earlier.ended < call.began);
        let newest = earlier.map(|(_, version)| *version).max();
        let what = || format!("{call:?} is of {version}, after a list of {newest:?}");
        Property::Versions.demand(newest.is_none_or(|newest| newest <= *version), what)?;
    }
    Ok(())
}

/// No VM is given away twice.
fn check_answers(record: &Record) -> Verdict {
    let forks = record.calls.iter().filter(|call| call.verb == Verb::Fork);
    let copies = forks.filter_map(Call::items).flatten();
    let given = record
        .acknowledged()
        .map(|(_, object)| object)
        .chain(copies);
    let mut owners: HashMap<String, Object> = HashMap::new();
    for object in given {
        let is_foreign = record.vm(&object.claim).is_some_and(|vm| vm.is_foreign);
        let what = || format!("given, and somebody else's: {object:?}");
        Property::OneOwner.demand(!is_foreign, what)?;
        if let Some(other) = owners.insert(object.claim.clone(), object.clone()) {
            return Property::OneOwner.broken(format!("given: {other:?}\nand {object:?}"));
        }
    }
    Ok(())
}

/// Who gets a name gets it after whoever had it before was on its way out.
fn check_names(record: &Record) -> Verdict {
    let created: Vec<_> = record.acknowledged().collect();
    for (one, object) in &created {
        let Some(vm) = record.vm(&object.claim) else {
            continue;
        };
        let later = created
            .iter()
            .filter(|(other, it)| it.name == object.name && other.ended > one.ended);
        for (other, usurper) in later {
            // Whichever was first, the other came after its end. An answer may be late: the object is there before an agent has
            // confirmed what its user said of it.
            let is_over = |vm: &Vm, by| vm.ended().is_some_and(|ended| ended <= by);
            let was_over = record
                .vm(&usurper.claim)
                .is_some_and(|usurper| is_over(usurper, vm.began));
            let is_over = was_over || is_over(vm, other.ended);
            // A server that could not reach the node at its start does not know.
            let killed = record.was_killed(one.began, other.ended);
            let what = || format!("{object:?}\nhas it, and then {usurper:?}");
            Property::UniqueNames.demand(is_over || killed, what)?;
        }
    }
    Ok(())
}

/// Every VM that was released was to be.
fn check_ends(record: &Record, seen: &Seen) -> Verdict {
    for vm in &record.vms {
        let Some((at, End::Released)) = vm.end else {
            continue;
        };
        if seen.may_be_deleted(record, vm, at) {
            continue;
        }
        let what = || format!("nobody deleted {vm:#?}");
        Property::NoGuess.demand(!vm.is_foreign, what)?;
        let is_given = record.calls.iter().any(|call| gives(call, &vm.id));
        Property::OnlyTheDeleted.demand(!is_given, what)?;
        // Nobody was told of it. Then somebody asked for it in vain, or left.
        let mut calls = record.calls.iter();
        let is_asked = calls.any(|call| match call.verb {
            Verb::Create => call.name == vm.name,
            Verb::Generate => vm.name.starts_with(&call.name),
            Verb::Fork => vm.is_copy() && call.answer.is_none(),
            _ => false,
        });
        Property::OnlyTheDeleted.demand(is_asked, what)?;
    }
    Ok(())
}

/// Whether the call's answer gives the VM to its user.
pub(super) fn gives(call: &Call, claim: &str) -> bool {
    match call.verb {
        Verb::Create | Verb::Generate => call.object().is_some_and(|it| it.claim == claim),
        Verb::Fork => call
            .items()
            .is_some_and(|items| items.iter().any(|it| it.claim == claim)),
        _ => false,
    }
}

/// The uid that the answer to a delete says is gone.
fn gone_uid(call: &Call) -> Option<String> {
    let answer = call.answer.as_ref()?;
    let is_delete = matches!(call.verb, Verb::Delete(_));
    let is_done = is_delete && answer.status == 200 && answer.body["kind"] == "Status";
    let uid = answer.body["details"]["uid"].as_str();
    uid.filter(|_| is_done).map(str::to_owned)
}

fn check_deletes(record: &Record) -> Verdict {
    let seen = Seen::of(record);
    let claims = seen.0.iter();
    let claims: BTreeMap<_, _> = claims.map(|(claim, (uid, _))| (uid, claim)).collect();
    for call in &record.calls {
        let Some(uid) = gone_uid(call) else { continue };
        let vm = claims.get(&uid).and_then(|claim| record.vm(claim));
        if let Some(vm) = vm {
            let is_over = vm.ended().is_some_and(|ended| ended <= call.ended);
            let what = || format!("{call:?}\nbut its VM: {vm:#?}");
            Property::Deleted.demand(is_over, what)?;
        }
        // A server that was killed knows of a silent node what that published before.
        let later = record
            .calls
            .iter()
            .filter(|it| it.began > call.ended && !record.was_killed(call.began, it.ended));
        for read in later.filter(|it| it.verb == Verb::List) {
            let items = read.items().unwrap_or_default().into_iter();
            let mut shown = items.chain(read.object());
            let what = || format!("{call:?}\nand then {read:?}");
            Property::Deleted.demand(shown.all(|it| it.uid != uid), what)?;
        }
    }
    Ok(())
}

fn check_missing(record: &Record, seen: &Seen) -> Verdict {
    // A name that passes to another sandbox is two changes, and a list may be of the version between them.
    let acknowledged = record
        .acknowledged()
        .filter(|(_, object)| !record.is_contested(&object.name));
    for (create, object) in acknowledged {
        let Some(vm) = record.vm(&object.claim) else {
            return Property::Acknowledged.broken(format!("no node knows {object:?}"));
        };
        let lists = record.calls.iter().filter(|call| {
            call.verb == Verb::List
                && call.began > create.ended
                && !record.was_killed(create.began, call.ended)
        });
        for list in lists {
            let Some(items) = list.items() else { continue };
            let excused = vm.ended().is_some_and(|ended| ended <= list.ended)
                || seen.may_be_deleted(record, vm, list.ended);
            let is_there = items.iter().any(|it| it.uid == object.uid);
            let what = || format!("{object:?}\nis not in {list:?}");
            Property::NeverMissing.demand(excused || is_there, what)?;
        }
    }
    Ok(())
}

/// As many claims of one name got VMs as were not refused because it was taken.
fn check_spent(record: &Record) -> Verdict {
    let creates = record.calls.iter().filter(|it| it.verb == Verb::Create);
    let names: BTreeSet<_> = creates.clone().map(|call| call.name.as_str()).collect();
    // What an earlier life of the server was granted takes a name away from a claim under way, and so does a stranger's.
    let names = names.into_iter().filter(|name| !record.is_contested(name));
    for name in names.filter(|_| record.kills.is_empty()) {
        let granted = record.vms.iter().filter(|vm| vm.name == name);
        let attempts: BTreeSet<_> = granted.map(|vm| vm.attempt.as_str()).collect();
        let of_name = creates.clone().filter(|call| call.name == name);
        let n_asked = of_name.filter(|it| it.status() != Some(409)).count();
        let what = || format!("{name}: {attempts:?} got VMs, of {n_asked} that might");
        Property::NothingSpent.demand(attempts.len() <= n_asked, what)?;
    }
    Ok(())
}

fn check_pauses(record: &Record) -> Verdict {
    for pause in record.calls.iter().filter(|it| it.verb == Verb::Pause) {
        let Some(paused) = pause.object() else {
            continue;
        };
        let reads = record.calls.iter().filter(|read| {
            read.verb == Verb::List
                && read.began > pause.ended
                && !record.was_killed(pause.began, read.ended)
        });
        for read in reads {
            let resumes = record.calls.iter().filter(|it| it.verb == Verb::Resume);
            let resumed = resumes
                .filter(|it| it.name == pause.name)
                .any(|it| it.touches(pause.began, read.ended));
            let items = read.items().unwrap_or_default().into_iter();
            let mut shown = items.chain(read.object()).filter(|it| it.uid == paused.uid);
            let what = || format!("{pause:?}\nand then {read:?}");
            Property::Paused.demand(resumed || shown.all(|it| it.is_suspended), what)?;
        }
    }
    Ok(())
}
