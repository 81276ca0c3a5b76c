//! A schedule's record, judged.
//!
//! The store is not judged by itself. The history is what one watcher of everything saw; it has to be one that can be, has to
//! count one a version up to the last, and has to agree with what does not come from a watch: the answers of writes, and what
//! the nodes hold and said, which the test itself made up. Everybody else is then judged by the history.

use serde_json::Value;

use super::{
    check_list, check_watch,
    history::{History, Kind, version_of},
    property::{Property, Verdict},
    record::{Dead, Looks, Phase, Record, Truth, Wish, WriteRecord},
    users::FINALIZER,
};

/// Who broke a promise, in front of which one it was.
fn of<T>(who: impl FnOnce() -> String, verdict: Verdict<T>) -> Verdict<T> {
    verdict.map_err(|mut violation| {
        violation.what = format!("{}\n{}", who(), violation.what);
        violation
    })
}

pub(super) fn check(record: &Record) -> Verdict {
    let history = of(|| "the reference".to_owned(), History::of(record))?;
    let history = &history;
    for (index, write) in record.writes.iter().enumerate() {
        let who = || format!("{} of {} at {:?}", write.verb, write.uid, write.heads);
        of(who, check_write(history, write))?;
        of(who, check_wish(history, write, &record.writes[index + 1..]))?;
    }
    for truth in &record.truths {
        check_truth(history, truth)?;
    }
    for dead in &record.dead {
        check_dead(history, dead)?;
    }
    for (before, after, what) in &record.quiet {
        let what = || format!("{what} made {} versions after {before}", after - before);
        Property::Quiet.demand(before == after, what)?;
    }
    for watch in record.reference.iter().chain(&record.watches) {
        let who = || {
            let lines = watch.lines.iter().map(|line| String::from_utf8_lossy(line));
            let lines: String = lines.collect();
            format!(
                "{:?}\nopened at {:?}, it got\n{lines}",
                watch.request, watch.opened
            )
        };
        of(who, check_watch::check(history, watch))?;
    }
    for list in &record.lists {
        let who = || format!("{:?}", list.request);
        of(who, check_list::check(history, list))?;
    }
    Ok(())
}

fn check_write(history: &History, write: &WriteRecord) -> Verdict {
    let broken = |what: String| Property::ReadYourWrites.broken(what);
    if write.code != 200 {
        return broken(format!("refused: {}", write.answer));
    }
    let is_gone = write.answer["kind"] == "Status";
    if !is_gone && !write.dry {
        let answer = write.form.told(&write.answer);
        let change = version_of(&answer).and_then(|version| history.at(version));
        let told = change.filter(|it| it.kind != Kind::Deleted);
        let told = told.map(|change| write.form.of(&change.object));
        if told.as_deref() != Some(&*answer) {
            return broken(format!("answered {answer}\nbut made {told:?}"));
        }
    }
    // Where the object was there may be another one by now, which waited for its name.
    let there = history.snapshot(write.heads.1);
    let there = there.get(&write.place).map(|it| write.form.of(it));
    match (write.read_code, there) {
        (404, None) => Ok(()),
        (200, Some(there)) => {
            let read = write.form.told(&write.read);
            let what = || format!("read {read}\nbut is {there}");
            Property::ReadYourWrites.demand(*read == *there, what)
        }
        (code, there) => broken(format!("read {code}, but is {there:?}")),
    }
}

/// What was asked for shows in the answer, and from then on in every state of the object, until it goes or another write asks for
/// something else.
fn check_wish(history: &History, write: &WriteRecord, later: &[WriteRecord]) -> Verdict {
    let shows = |object: &Value| write.wish.shows(&object["metadata"]);
    let is_gone = write.answer["kind"] == "Status";
    let what = || format!("wrote {:?}, answered {}", write.wish, write.answer);
    Property::ReadYourWrites.demand(is_gone || shows(&write.answer), what)?;
    if write.dry {
        return Ok(());
    }
    let there = history.object(&write.uid, write.heads.1);
    if is_gone {
        let what = || format!("is said to be gone, and is {there:?}");
        return Property::ReadYourWrites.demand(there.is_none(), what);
    }
    let same = |other: &&WriteRecord| {
        let kind = std::mem::discriminant(&write.wish);
        !other.dry && other.uid == write.uid && std::mem::discriminant(&other.wish) == kind
    };
    let until = later.iter().find(same).map_or(u64::MAX, |it| it.heads.0);
    let changes = history.changes.iter();
    let states = changes
        .filter(|change| change.uid == write.uid && change.version > write.heads.1)
        .take_while(|change| change.version <= until && change.kind != Kind::Deleted);
    let states = states.map(|change| &change.object).chain(there);
    for state in states {
        let what = || format!("wrote {:?}, and then it is {state}", write.wish);
        Property::ReadYourWrites.demand(shows(state), what)?;
    }
    Ok(())
}

impl Wish {
    /// Whether it is granted in an object with this metadata.
    fn shows(self, metadata: &Value) -> bool {
        let finalizers = metadata["finalizers"].as_array();
        let mut finalizers = finalizers.into_iter().flatten();
        match self {
            Self::Color(color) => metadata["labels"]["color"].as_str() == color,
            Self::Finalizer(on) => finalizers.any(|it| it == FINALIZER) == on,
            Self::End => metadata["deletionTimestamp"].is_string(),
        }
    }
}

impl Looks {
    fn are(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let color = metadata["labels"]["color"].as_str();
        // Who came too late for a name is listed by its id.
        let is_named = self.claim_ref == format!("{namespace}/{name}")
            || self.claim_ref.starts_with(&format!("{namespace}/"))
                && name.starts_with(&self.id_name);
        is_named
            && text(&object["status"]["nodeName"]) == self.node
            && self.color.is_none_or(|expected| expected == color)
    }
}

fn check_truth(history: &History, truth: &Truth) -> Verdict {
    let Truth {
        at,
        uid,
        phase,
        looks,
        reason,
    } = truth;
    let listed = history.object(uid, *at);
    let holds = match (phase, listed) {
        (None, None) | (Some(Phase::Any), Some(_)) => true,
        (Some(Phase::Is(phase)), Some(object)) => {
            let key = sandbox_apiserver::api::labels::PHASE;
            object["metadata"]["labels"][key] == **phase
        }
        _ => false,
    };
    let what = || format!("at {at} {uid} is not {phase:?}, although {reason}: {listed:?}");
    Property::Faithful.demand(holds, what)?;
    let (Some(looks), Some(object)) = (looks, listed) else {
        return Ok(());
    };
    let what = || format!("at {at} {uid} does not look like {looks:?}: {object}");
    Property::Faithful.demand(looks.are(object), what)
}

fn check_dead(history: &History, dead: &Dead) -> Verdict {
    let Dead { uid, since, until } = dead;
    let times = *since + 1..=*until;
    let mut changes = history.changes.iter();
    let back = changes.find(|change| change.uid == *uid && times.contains(&change.version));
    let what = || format!("{uid} was gone at {since}, and came back: {back:?}");
    Property::Faithful.demand(back.is_none(), what)
}
