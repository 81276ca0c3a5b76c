//! Lists and watches under random schedules, as etcd's robustness suite does it: everybody's view is recorded, and judged
//! afterwards by what really happened.
//!
//! A schedule is 15 to 80 steps: what nodes do and publish (late, twice, cut, without a word, gone and back), what users write,
//! and watchers and lists of every kind in between, over a history that forgets. `robustness/property.rs` says what is
//! promised, one sentence each; `robustness/check.rs` says who is believed.
//!
//! The server is the real one: the resource `sandboxes` over the index of nodes, asked with HTTP requests in this process,
//! without a connection. Its nodes are the test's own, and have no address: publications, direct reads and acknowledged calls are
//! handed to the index as `inventory` and `gateway` hand them over, a create and a pause among them, while patches, finalizers and
//! deletes are requests. Rejected: simulated nodes behind sockets. Time could not be paused then: a schedule that waits for a
//! bookmark would take a minute, and nothing would say when everything has happened that is going to.
//!
//! Environment:
//!   ROBUSTNESS_SEED        seed of the first schedule, each further one having the next; chosen and printed if unset
//!   ROBUSTNESS_SCHEDULES   number of schedules; 10 000 if unset
//!
//! A broken promise is printed with its seed and the fewest steps found that still break it; that seed and one schedule play it
//! again. `hack/mutants watch` shows that the promises are worth something: it plants faults that each have to break one.

mod check;
mod check_list;
mod check_watch;
mod history;
mod house;
mod nodes;
mod play;
mod property;
mod query;
mod readers;
mod record;
mod schedule;
mod users;
mod watcher;

use std::{
    collections::HashMap,
    env,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use tokio::runtime::Runtime;

use house::House;
use property::{Property, Violation};
use schedule::Schedule;

/// Two, as of a small machine: more would only take turns.
const THREADS: usize = 2;
/// After so many schedules a server is replaced by a new one, which costs as much as a few dozen schedules.
const SCHEDULES_A_HOUSE: u64 = 2_500;

/// Where schedules are played. Several share a server, which begins each one without anything.
struct Theatre {
    runtime: Runtime,
    houses: HashMap<u64, House>,
    played: u64,
}

/// Says which schedule it was in which something panicked.
struct Named<'a>(&'a Schedule);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("robustness: panicked in {:?}", self.0);
        }
    }
}

impl Theatre {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        Self {
            runtime: runtime.unwrap(),
            houses: HashMap::new(),
            played: 0,
        }
    }

    fn play(&mut self, schedule: &Schedule) -> Result<(), Violation> {
        let _named = Named(schedule);
        self.played += 1;
        if self.played.is_multiple_of(SCHEDULES_A_HOUSE) {
            self.houses.clear();
        }
        let _inside = self.runtime.enter();
        let house = self.houses.entry(schedule.history);
        let house = house.or_insert_with(|| House::new(schedule.history));
        let played = self
            .runtime
            .block_on(play::play(house, schedule, self.played));
        check::check(&played)
    }

    /// The shortest schedule found by leaving out steps that breaks a promise, and which.
    fn shorten(
        &mut self,
        mut schedule: Schedule,
        mut violation: Violation,
    ) -> (Schedule, Violation) {
        let mut index = schedule.steps.len();
        while index > 0 {
            index -= 1;
            let mut shorter = schedule.clone();
            shorter.steps.remove(index);
            match self.play(&shorter) {
                Err(found) if found.property == violation.property => {
                    (schedule, violation) = (shorter, found);
                }
                _ => {}
            }
        }
        (schedule, violation)
    }
}

fn setting<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    let value = text.parse().ok();
    Some(value.unwrap_or_else(|| panic!("{name}={text} is no number")))
}

#[test]
fn lists_and_watches_keep_their_promises() {
    let seed = setting("ROBUSTNESS_SEED").unwrap_or_else(|| rand::random::<u64>() >> 16);
    let count = setting("ROBUSTNESS_SCHEDULES").unwrap_or(10_000);
    let (begun, next) = (Instant::now(), AtomicU64::new(0));
    println!("robustness: {count} schedules from ROBUSTNESS_SEED={seed}");
    let found = thread::scope(|scope| {
        let work = || {
            let mut theatre = Theatre::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return None;
                }
                let schedule = Schedule::of(seed.wrapping_add(number));
                if let Err(violation) = theatre.play(&schedule) {
                    // The other one need not go on.
                    next.store(count, Ordering::Relaxed);
                    let (shorter, violation) = theatre.shorten(schedule, violation);
                    return Some((number, shorter, violation));
                }
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let found = threads.into_iter().map(|thread| thread.join().unwrap());
        found.flatten().min_by_key(|(number, ..)| *number)
    });
    if let Some((number, schedule, violation)) = found {
        let property: Property = violation.property;
        panic!(
            "robustness: {property:?} broken after {number} schedules\n{schedule:?}\n{violation}"
        );
    }
    println!(
        "robustness: {count} schedules kept all promises in {:?}",
        begun.elapsed()
    );
}
