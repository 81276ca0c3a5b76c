//! What has to be in the end, when everything is mended and had time.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::{
    check::{Seen, gives},
    property::{Property, Verdict},
    record::{Call, Object, Outcome, Record, Verb, Vm},
};

/// How long it may take until the server sees that a client has left: it may be frozen.
const NOTICED_WITHIN: SignedDuration = SignedDuration::from_secs(2);

pub(super) fn check(record: &Record, outcome: &Outcome) -> Verdict {
    check_owed(record)?;
    check_settled(record)?;
    check_leaks(outcome)?;
    check_acknowledged(record, outcome)?;
    check_labels(record, outcome)
}

/// What a delete was answered for is gone.
fn check_owed(record: &Record) -> Verdict {
    let seen = Seen::of(record);
    let deletes = record
        .calls
        .iter()
        .filter(|call| matches!(call.verb, Verb::Delete(_)));
    for delete in deletes {
        // An object: it is on its way out. A Status is judged elsewhere.
        let Some(object) = delete.object() else {
            continue;
        };
        let vm = record.vm(&object.claim);
        let is_gone = vm.is_none_or(|vm| vm.end.is_some());
        let is_meant = vm.is_none_or(|vm| seen.may_end(delete, vm, delete.ended));
        let what = || format!("{delete:?}\nbut {vm:#?}");
        Property::OnlyTheDeleted.demand(is_meant, what)?;
        Property::Owed.demand(is_gone, what)?;
    }
    Ok(())
}

/// No VM is left of a create that was answered otherwise.
fn check_settled(record: &Record) -> Verdict {
    let left = record.vms.iter().filter(|vm| vm.end.is_none());
    let own = left.filter(|vm| !vm.is_foreign && !vm.is_copy());
    for vm in own {
        let is_given = record.calls.iter().any(|call| gives(call, &vm.id));
        let mut calls = record.calls.iter().filter(|call| asks_for(call, vm));
        let excused = calls.any(|call| {
            // What was to be settled is forgotten with the server.
            let killed = record.kills.iter().any(|kill| *kill >= call.began);
            // Whoever left may have been given it at that moment.
            let left = call.answer.is_none()
                && (call.began..=call.ended + NOTICED_WITHIN).contains(&vm.began);
            killed || left
        });
        let what = || format!("nobody has {vm:#?}");
        Property::Settled.demand(is_given || excused, what)?;
    }
    Ok(())
}

fn asks_for(call: &Call, vm: &Vm) -> bool {
    match call.verb {
        Verb::Create => call.name == vm.name,
        Verb::Generate => vm.name.starts_with(&call.name),
        _ => false,
    }
}

fn check_leaks(outcome: &Outcome) -> Verdict {
    let Outcome {
        listed,
        version,
        held,
    } = outcome;
    let shown = listed.iter().filter(|it| !it.is_deleted);
    let shown: BTreeMap<_, _> = shown
        .map(|it| (it.claim.clone(), it.is_suspended))
        .collect();
    let what = || format!("at {version} listed: {listed:#?}\nheld: {held:#?}");
    Property::NoLeak.demand(shown == *held, what)
}

/// What was answered and did not end is there, under its name.
fn check_acknowledged(record: &Record, outcome: &Outcome) -> Verdict {
    for (create, object) in record.acknowledged() {
        let Some(vm) = record.vm(&object.claim) else {
            return Property::Acknowledged.broken(format!("no node knows {object:?}"));
        };
        if vm.end.is_some() {
            continue;
        }
        let listed = outcome.listed.iter().find(|it| it.uid == object.uid);
        // Somebody who claimed the name earlier, and was not heard of yet, keeps it.
        let is_contested = record.is_contested(&object.name) || record.is_usurped(create, &object);
        let is_there = listed
            .is_some_and(|it| it.claim == object.claim && (it.name == object.name || is_contested));
        let what = || format!("{object:?}\nis {listed:?}");
        Property::Acknowledged.demand(is_there, what)?;
    }
    Ok(())
}

fn check_labels(record: &Record, outcome: &Outcome) -> Verdict {
    let writes: Vec<_> = record
        .calls
        .iter()
        .filter(|call| matches!(call.verb, Verb::Label(_)))
        .collect();
    for write in &writes {
        let (Verb::Label(colour), Some(object)) = (&write.verb, write.object()) else {
            continue;
        };
        let mut others = writes.iter().filter(|other| other.name == write.name);
        let is_last = others.all(|it| it.began == write.began || !after(it, write));
        let is_warned = write.answer.as_ref().is_some_and(|it| it.is_warned);
        let killed = record.kills.iter().any(|kill| *kill >= write.began);
        let listed = outcome.listed.iter().find(|it| it.uid == object.uid);
        let shows = |it: &Object| it.colour.as_deref() == Some(*colour);
        let what = || format!("{write:?}\nand in the end {listed:?}");
        Property::Written.demand(
            !is_last || (killed && is_warned) || listed.is_none_or(shows),
            what,
        )?;
    }
    Ok(())
}

/// Whether a call may have done its work after another one had done its own.
fn after(call: &Call, other: &Call) -> bool {
    call.answer.is_none() || call.ended >= other.began
}

impl Record {
    /// Whether another VM of the name may have been there before, unknown to a server that was killed.
    fn is_usurped(&self, create: &Call, object: &Object) -> bool {
        let mut others = self.vms.iter();
        let earlier = |vm: &Vm| vm.name == object.name && vm.id != object.claim;
        others.any(|vm| earlier(vm) && self.was_killed(vm.began, create.ended))
    }
}
