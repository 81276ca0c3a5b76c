//! Real processes under random faults: server and agents are killed and frozen, nodes stand still and come back, connections
//! between them are cut, held, delayed, or lose answers, while users fight over a few names.
//!
//! A schedule is 20 to 40 steps, chosen by a seed; `chaos/schedule.rs` has them. Then everything is mended, and what
//! everybody was told is judged by what the nodes wrote down: `chaos/property.rs` says what is promised, one sentence each.
//! Which steps there are is the seed's alone. When a call meets a fault is the machine's too: a schedule that is played again
//! breaks a promise often, not always.
//!
//! Server, kube-apiserver, nodes and agents are processes of their own, nodes and agents behind a TCP proxy each
//! (`chaos/line.rs`). Users call the server at its own port: kube-apiserver would answer in its place when it is down. Two nodes
//! have an agent beside them, and one has none.
//!
//! Environment:
//!   CHAOS_SEED        seed of the first schedule, each further one having the next; chosen and printed if unset
//!   CHAOS_SCHEDULES   number of schedules; 20 if unset
//!
//! 500 of them, after the `export` of CONTRIBUTING.md:
//!
//!   CHAOS_SCHEDULES=500 cargo test --test cluster chaos:: -- --nocapture
//!
//! `hack/mutants claims` plants faults that each have to break a promise.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

mod check;
mod check_end;
mod line;
mod play;
mod property;
mod record;
mod schedule;
mod site;
mod users;
mod watcher;

use std::{
    env,
    str::FromStr,
    time::{Duration, Instant},
};

use record::Record;
use schedule::Schedule;
use site::Site;

/// How long a schedule may take at most; most take 4 s.
const ENDS_WITHIN: Duration = Duration::from_secs(240);

fn setting<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    let value = text.parse().ok();
    Some(value.unwrap_or_else(|| panic!("{name}={text} is no number")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_keep_their_promises_whatever_fails() {
    let seed: u64 = setting("CHAOS_SEED").unwrap_or_else(|| rand::random::<u64>() >> 16);
    let count: u64 = setting("CHAOS_SCHEDULES").unwrap_or(20);
    println!("chaos: {count} schedules from CHAOS_SEED={seed}");
    let mut site = Site::start().await;
    let (begun, mut tally) = (Instant::now(), Tally::default());
    for number in 0..count {
        let schedule = Schedule::of(seed + number);
        let played = tokio::time::timeout(ENDS_WITHIN, play::play(&mut site, &schedule)).await;
        let (verdict, record) = played.unwrap_or_else(|_| panic!("it does not end: {schedule:?}"));
        tally.add(&record);
        let Err(violation) = verdict else { continue };
        println!(
            "chaos: {:?} broken after {} schedules",
            violation.property,
            number + 1
        );
        println!("{}", site.log_tail(60));
        println!("{}\nin {schedule:?}", told(&record));
        panic!("{violation}");
    }
    println!(
        "chaos: {count} schedules in {:?}: {tally:?}",
        begun.elapsed()
    );
    // One schedule may do without some of it.
    assert!(count < 20 || tally.has_all(), "{tally:?}");
}

/// How much happened: a run in which nothing does would prove nothing.
#[derive(Debug, Default)]
struct Tally {
    calls: usize,
    unanswered: usize,
    failed: usize,
    acknowledged: usize,
    granted: usize,
    released: usize,
    kills: usize,
    /// Labels whose answers promised that they outlive the server.
    kept: usize,
}

impl Tally {
    fn add(&mut self, record: &Record) {
        let answers = || record.calls.iter().filter_map(record::Call::status);
        self.calls += record.calls.len();
        self.unanswered += record.calls.len() - answers().count();
        self.failed += answers().filter(|status| *status >= 500).count();
        self.acknowledged += record.acknowledged().count();
        self.granted += record.vms.len();
        self.released += record.vms.iter().filter(|vm| vm.end.is_some()).count();
        self.kills += record.kills.len() / 2;
        let labels = record.calls.iter();
        let labels = labels.filter(|call| matches!(call.verb, record::Verb::Label(_)));
        let answers = labels.filter_map(|call| call.answer.as_ref());
        self.kept += answers
            .filter(|it| it.status < 300 && !it.is_warned)
            .count();
    }

    fn has_all(&self) -> bool {
        let calls = [self.calls, self.unanswered, self.failed, self.acknowledged];
        let ends = [self.granted, self.released, self.kills, self.kept];
        calls.iter().chain(&ends).all(|count| *count > 0)
    }
}

/// All that happened, in its order.
fn told(record: &Record) -> String {
    let mut lines = Vec::new();
    for call in &record.calls {
        let end = match &call.answer {
            Some(answer) => format!("{answer:?}"),
            None => "nothing".to_owned(),
        };
        lines.push((call.began, format!("{:?} {}", call.verb, call.name)));
        lines.push((call.ended, format!("{:?} {}: {end}", call.verb, call.name)));
    }
    for vm in &record.vms {
        lines.push((vm.began, format!("{} begins: {vm:?}", vm.id)));
        if let Some((at, end)) = vm.end {
            lines.push((at, format!("{} ends: {end:?}", vm.id)));
        }
    }
    for kill in &record.kills {
        lines.push((*kill, "the server is killed".to_owned()));
    }
    lines.sort();
    let lines = lines.iter().map(|(at, what)| format!("{at} {what}\n"));
    lines.collect()
}
