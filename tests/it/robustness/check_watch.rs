//! A watch, judged by the history.

use bytes::Bytes;
use serde_json::Value;

use super::{
    history::{Expected, History, Kind, version_of},
    property::{Property, Verdict},
    query::Form,
    watcher::{End, From, WatchRecord},
};

/// A watch without a timeout lasts at least so many milliseconds.
const DEFAULT_TIMEOUT: u128 = 1_800_000;
/// No watch without one lasts longer, in milliseconds.
const LONGEST_DEFAULT: u128 = 2 * DEFAULT_TIMEOUT;
/// Milliseconds after its end at which a watch is surely over: time stands still while anything is under way.
const LATE: u128 = 1_000;

/// How far the reading of one watch is.
struct Reader<'a> {
    history: &'a History,
    watch: &'a WatchRecord,
    /// What it is to get, the initial events first.
    expected: Vec<Expected>,
    n_initial: usize,
    /// What it got of that.
    delivered: usize,
    /// The version from which the changes are counted.
    since: u64,
    /// Version of the newest bookmark.
    marked: u64,
    /// Whether the bookmark that ends the initial events has come.
    ended_initial: bool,
    refused: bool,
}

pub(super) fn check(history: &History, watch: &WatchRecord) -> Verdict {
    let mut reader = Reader::new(history, watch);
    // How much of what was expected had come by each line.
    let mut progress = vec![(0, 0)];
    for (number, line) in watch.lines.iter().enumerate() {
        reader.line(number, line)?;
        progress.push((reader.delivered, reader.marked));
    }
    reader.keeps_up(&progress)?;
    reader.end()
}

impl<'a> Reader<'a> {
    fn new(history: &'a History, watch: &'a WatchRecord) -> Self {
        let view = &watch.request.view;
        // Nothing else was under way when it was opened.
        let opened = watch.opened.1;
        let since = match watch.request.from {
            From::After(version) => version,
            From::Anything { .. } | From::List(_) => opened,
        };
        let mut expected = match watch.request.from {
            From::After(_) => Vec::new(),
            From::Anything { .. } | From::List(_) => history.initial(view, opened),
        };
        let n_initial = expected.len();
        expected.extend(history.after(view, since));
        Self {
            history,
            watch,
            expected,
            n_initial,
            delivered: 0,
            since,
            marked: 0,
            ended_initial: false,
            refused: false,
        }
    }

    fn form(&self) -> Form {
        self.watch.request.view.form
    }

    /// Whether it asked for the bookmark that ends the initial events.
    fn asked_for_end(&self) -> bool {
        matches!(self.watch.request.from, From::List(_)) && self.watch.request.bookmarks
    }

    fn line(&mut self, number: usize, line: &Bytes) -> Verdict {
        let form = self.form();
        // The first line of a table is unlike the others.
        let known = self.history.known(line, form).filter(|_| number > 0);
        if known.is_some() && known == self.next() && !self.refused && !self.awaits_end() {
            self.delivered += 1;
            return Ok(());
        }
        let event = self.history.parse(line)?;
        let after_end = || format!("an event after the last one: {event}");
        Property::Expired.demand(!self.refused, after_end)?;
        let kind = match event["type"].as_str() {
            Some("ADDED") => Kind::Added,
            Some("MODIFIED") => Kind::Modified,
            Some("DELETED") => Kind::Deleted,
            Some("BOOKMARK") => return self.bookmark(number, &event["object"]),
            Some("ERROR") => return self.refusal(&event["object"]),
            _ => return Property::Kinds.broken(format!("no event: {event}")),
        };
        let object = self.unwrapped(number, &event["object"])?;
        let told = form.told(object);
        self.change(kind, &told)?;
        if let Some(version) = version_of(&told).filter(|_| number > 0) {
            self.history.is_known(line, form, (kind, version));
        }
        Ok(())
    }

    /// What it is to get next.
    fn next(&self) -> Option<(Kind, u64)> {
        let next = self.expected.get(self.delivered)?;
        Some((next.kind, next.version))
    }

    /// Whether the end of the initial events is due.
    fn awaits_end(&self) -> bool {
        self.asked_for_end() && !self.ended_initial && self.delivered == self.n_initial
    }

    /// The object of an event, in a table its row.
    fn unwrapped<'v>(&self, number: usize, object: &'v Value) -> Verdict<&'v Value> {
        let (version, kind) = self.form().kind();
        let is_right = object["apiVersion"] == version && object["kind"] == kind;
        Property::Kinds.demand(is_right, || format!("not a {kind} of {version}: {object}"))?;
        if self.form() != Form::Table {
            return Ok(object);
        }
        let rows = object["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let is_right = rows.len() == 1 && object["columnDefinitions"].is_array() == (number == 0);
        Property::Kinds.demand(is_right, || {
            format!("not a table of one row, or with other columns, as line {number}: {object}")
        })?;
        Ok(&rows[0])
    }

    fn change(&mut self, kind: Kind, told: &Value) -> Verdict {
        let Some(version) = version_of(told) else {
            return Property::Kinds.broken(format!("no version: {told}"));
        };
        if self.awaits_end() {
            return Property::InitialEnd.broken(format!("{version} came before the end"));
        }
        let Some(expected) = self.expected.get(self.delivered) else {
            return self.unexpected(kind, version, told);
        };
        if (expected.version, expected.kind) != (version, kind) {
            return self.unexpected(kind, version, told);
        }
        let wanted = expected.in_form(self.form());
        if *wanted != *told {
            let property = match kind {
                Kind::Deleted => Property::LastState,
                _ => Property::NeverReused,
            };
            return property.broken(format!(
                "{} {version} is {told}\nbut is {wanted}",
                kind.as_str()
            ));
        }
        self.delivered += 1;
        Ok(())
    }

    /// Says which promise an event breaks that is not the next one.
    fn unexpected(&self, kind: Kind, version: u64, told: &Value) -> Verdict {
        let next = self.expected.get(self.delivered);
        let got = format!("{} {version}: {told}", kind.as_str());
        let next_is = next.map(|next| format!("{} {}", next.kind.as_str(), next.version));
        let text = format!("got {got}\nnext is {next_is:?}");
        if self.delivered < self.n_initial {
            return Property::Initial.broken(text);
        }
        let (before, after) = self.expected.split_at(self.delivered);
        if before.iter().any(|it| it.version == version) {
            return Property::Unique.broken(text);
        }
        if version <= self.since {
            return Property::Resumable.broken(text);
        }
        if before[self.n_initial..]
            .last()
            .is_some_and(|it| it.version > version)
        {
            return Property::Ordered.broken(text);
        }
        match after.iter().find(|it| it.version == version) {
            Some(it) if it.kind != kind => Property::Selected.broken(text),
            Some(_) => Property::Reliable.broken(text),
            None if self.history.at(version).is_some() => Property::Selected.broken(text),
            None => Property::NeverReused.broken(text),
        }
    }

    fn bookmark(&mut self, number: usize, object: &Value) -> Verdict {
        let asked = self.watch.request.bookmarks;
        Property::Bookmarkable.demand(asked, || format!("nobody asked for {object}"))?;
        let object = self.unwrapped(number, object)?;
        let bare = match self.form() {
            Form::Table => &object["object"],
            _ => object,
        };
        let Some(version) = version_of(bare) else {
            return Property::Kinds.broken(format!("no version: {bare}"));
        };
        let mut fields = bare
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.as_str());
        let is_bare = fields.all(|key| matches!(key, "apiVersion" | "kind" | "metadata"));
        Property::Kinds.demand(is_bare, || format!("not only a bookmark: {bare}"))?;
        let annotations = &bare["metadata"]["annotations"];
        match annotations["k8s.io/initial-events-end"] == "true" {
            true => self.initial_end(version)?,
            false => {
                let in_time = self.delivered >= self.n_initial;
                let in_time = in_time && (self.ended_initial || !self.asked_for_end());
                Property::InitialEnd.demand(in_time, || {
                    format!("a bookmark of {version} before the end")
                })?;
            }
        }
        let last = self.expected[..self.delivered]
            .iter()
            .map(|it| it.version)
            .max();
        let behind = last.unwrap_or_default().max(self.marked);
        let ahead = self
            .expected
            .get(self.delivered)
            .map_or(u64::MAX, |next| next.version);
        Property::Bookmarkable.demand(behind <= version && version < ahead, || {
            format!("a bookmark of {version} after {behind} and before {ahead}")
        })?;
        self.marked = version;
        Ok(())
    }

    fn initial_end(&mut self, version: u64) -> Verdict {
        let asked = self.asked_for_end() && !self.ended_initial;
        let in_place = self.delivered == self.n_initial && version >= self.watch.opened.0;
        Property::InitialEnd.demand(asked && in_place, || {
            let (delivered, of) = (self.delivered, self.n_initial);
            format!("the end of initial events at {version}, after {delivered} of {of}, or again")
        })?;
        self.ended_initial = true;
        Ok(())
    }

    /// A reader is told that it is too late if its place is forgotten, and a place is forgotten only if it is too old.
    fn refusal(&mut self, status: &Value) -> Verdict {
        self.refused = true;
        let is_expired = status["code"] == 410 && status["reason"] == "Expired";
        Property::Resumable.demand(is_expired, || format!("not why a watch ends: {status}"))?;
        let oldest = self.history.oldest(self.newest());
        Property::Resumable.demand(self.surely_read() < oldest, || {
            format!(
                "read up to {}, and {oldest} is still known: {status}",
                self.surely_read()
            )
        })
    }

    fn newest(&self) -> u64 {
        self.history
            .changes
            .last()
            .map_or(0, |change| change.version)
    }

    /// Up to where the server has surely sent it everything.
    fn surely_read(&self) -> u64 {
        let marks = self.watch.marks.iter().map(|mark| mark.head).max();
        let last = self.expected[..self.delivered]
            .iter()
            .map(|it| it.version)
            .max();
        let known = marks.unwrap_or_default().max(last.unwrap_or_default());
        known.max(self.marked).max(self.since)
    }

    /// At every moment at which nothing was under way it had everything, and a bookmark if it was idle for long.
    fn keeps_up(&self, progress: &[(usize, u64)]) -> Verdict {
        for mark in &self.watch.marks {
            let (delivered, marked) = progress[mark.lines];
            let missed = self.expected[delivered..]
                .iter()
                .find(|it| it.version <= mark.head);
            if let Some(missed) = missed {
                let kind = missed.kind.as_str();
                return Property::Reliable.broken(format!(
                    "at {} it has not got {kind} {}: {}",
                    mark.head, missed.version, missed.object
                ));
            }
            let is_due = self.watch.request.bookmarks && self.since <= mark.head;
            if is_due && mark.after_a_minute {
                Property::Bookmarkable.demand(marked == mark.head, || {
                    format!(
                        "after a minute at {} the last bookmark is {marked}",
                        mark.head
                    )
                })?;
            }
            let in_time = !self.asked_for_end() || self.end_of_initial_is_in(mark.lines);
            Property::InitialEnd.demand(in_time, || "it has not come".to_owned())?;
        }
        Ok(())
    }

    fn end_of_initial_is_in(&self, lines: usize) -> bool {
        let lines = &self.watch.lines[..lines];
        let needle = b"\"k8s.io/initial-events-end\"";
        lines
            .iter()
            .any(|line| line.windows(needle.len()).any(|part| part == needle))
    }

    fn end(&self) -> Verdict {
        let watch = self.watch;
        let whole = watch.end != End::Broken;
        Property::Reliable.demand(whole, || "the stream broke".to_owned())?;
        let patience = watch
            .request
            .timeout
            .map_or(DEFAULT_TIMEOUT, |seconds| u128::from(seconds) * 1_000);
        let longest = watch.request.timeout.map_or(LONGEST_DEFAULT, |_| patience);
        let late = watch.marks.iter().find(|mark| mark.at > longest + LATE);
        Property::Punctual.demand(late.is_none(), || format!("it goes on: {late:?}"))?;
        let may_end = self.refused || watch.lasted >= patience;
        Property::Punctual.demand(watch.end == End::Open || may_end, || {
            format!("it ended after {} ms", watch.lasted)
        })?;
        // One that began before what is known by then was to be told.
        let too_late = self.since < self.history.oldest(watch.opened.1);
        Property::Resumable.demand(!too_late || self.refused || watch.marks.is_empty(), || {
            format!(
                "a watch from {} at {} was taken",
                self.since, watch.opened.1
            )
        })
    }
}
