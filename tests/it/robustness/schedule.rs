//! Schedules: what happens, in which order. All chance is in here, so that a schedule can be played again, and shortened.

use std::fmt;

use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

use super::{
    nodes::{COLORS, N_NODES, NAMES, NAMESPACES},
    query::{Form, Selector, View},
};

/// One thing that happens. A `pick` chooses among what is there by then; where there is nothing to choose, nothing happens.
#[derive(Clone, Debug)]
pub(super) enum Step {
    // What nodes do, unseen.
    /// A sandbox comes to be on a node that nobody asked for.
    Plant {
        node: usize,
        name: usize,
        namespace: usize,
        color: Option<usize>,
        dated: bool,
        short: bool,
    },
    /// A node loses a sandbox.
    Lose {
        node: usize,
        pick: u32,
    },
    /// A sandbox is paused or resumed on its node.
    Turn {
        node: usize,
        pick: u32,
    },

    // What reaches the server of it.
    /// A node publishes what it holds; `cut`: it does not say that this is all.
    Publish {
        node: usize,
        cut: bool,
    },
    /// An older publication comes late.
    PublishLate {
        node: usize,
        pick: u32,
    },
    /// The newest publication comes twice.
    Repeat {
        node: usize,
    },
    /// The server reads a node.
    Read {
        node: usize,
    },
    /// The server asks a node, whose answer takes its time.
    BeginRead {
        node: usize,
    },
    /// That answer comes.
    EndRead,
    /// A node that is just starting says that it holds nothing, and comes to remember.
    Restart {
        node: usize,
    },
    /// A node that is asked for one sandbox does not have it any more.
    Deny {
        node: usize,
        pick: u32,
    },
    /// A node's agent tells of one sandbox.
    Observe {
        node: usize,
        pick: u32,
    },
    /// Time passes without a word of the nodes, but for those named.
    Silence {
        seconds: u64,
        heard: [bool; N_NODES],
    },
    /// A node leaves the cluster.
    Forget {
        node: usize,
    },

    // What users do.
    /// A create, as the node granted it.
    Create {
        node: usize,
        name: usize,
        namespace: usize,
        color: Option<usize>,
        /// Its lease may end while the schedule goes on.
        short: bool,
    },
    /// A patch of a label; without a color it is taken away.
    Patch {
        pick: u32,
        color: Option<usize>,
        form: Form,
        dry: bool,
    },
    /// A finalizer is put on or taken off.
    Finalize {
        pick: u32,
        on: bool,
    },
    Delete {
        pick: u32,
    },
    /// The node has done what a delete asked for.
    Release {
        node: usize,
        pick: u32,
    },
    /// A pause or resume, as the node acknowledged it.
    Pause {
        node: usize,
        pick: u32,
    },

    // What readers do.
    Watch {
        view: View,
        from: Start,
        bookmarks: bool,
        timeout: Option<u64>,
    },
    Disconnect {
        pick: u32,
    },
    /// Goes on from the last version seen; `list`: with initial events.
    Reconnect {
        pick: u32,
        list: bool,
    },
    Stall {
        pick: u32,
    },
    Unstall {
        pick: u32,
    },
    List {
        view: View,
        start: Start,
        exact: Exactness,
        limit: Option<usize>,
    },
    /// The next page of a list that has one.
    NextPage {
        pick: u32,
    },
    /// A list that is to be newer than anything there is; `then`: until something happens.
    ListAhead {
        view: View,
        then: bool,
    },
    /// More than a minute without anything.
    Idle,
}

/// The version that a reader names, as so many changes before the newest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    Unset,
    Zero,
    Back(u64),
    /// Of the future.
    Ahead(u64),
    /// As [`Start::Unset`] and [`Start::Back`], with initial events, if it is a watch.
    Initial(Option<u64>),
}

/// `resourceVersionMatch`, for a list that names a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exactness {
    Unset,
    Exact,
    NotOlderThan,
}

/// A schedule and what it is played on.
#[derive(Clone)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    /// Changes that the server remembers.
    pub(super) history: u64,
    pub(super) steps: Vec<Step>,
}

/// The first remembers everything; the others forget within a schedule, but never within a step.
pub(super) const HISTORIES: [u64; 3] = [10_000, 40, 24];

impl Schedule {
    pub(super) fn of(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let history = *HISTORIES.choose(&mut rng).unwrap();
        // Long enough that even a list's pages outlive their version.
        let length = match history {
            24 => rng.random_range(40..=80),
            _ => rng.random_range(15..=40),
        };
        let steps = (0..length).map(|_| step(&mut rng)).collect();
        Self {
            seed,
            history,
            steps,
        }
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            history,
            steps,
        } = self;
        writeln!(f, "seed {seed}, {history} changes remembered")?;
        let mut steps = steps.iter().enumerate();
        steps.try_for_each(|(number, step)| writeln!(f, "{number:>4} {step:?}"))
    }
}

fn step(rng: &mut SmallRng) -> Step {
    let (node, pick) = (rng.random_range(0..N_NODES), rng.random());
    match rng.random_range(0..100) {
        0..10 => Step::Plant {
            node,
            name: rng.random_range(0..NAMES.len()),
            namespace: rng.random_range(0..NAMESPACES.len()),
            color: color(rng),
            dated: rng.random_bool(0.8),
            short: rng.random_bool(0.2),
        },
        10..12 => Step::Lose { node, pick },
        12 => Step::Deny { node, pick },
        13..16 => Step::Turn { node, pick },
        16..28 => Step::Publish {
            node,
            cut: rng.random_bool(0.2),
        },
        28..31 => Step::PublishLate { node, pick },
        31..33 => Step::Repeat { node },
        33..36 => Step::Read { node },
        36..38 => Step::BeginRead { node },
        38..40 => Step::EndRead,
        40 => Step::Restart { node },
        41..43 => Step::Observe { node, pick },
        43..45 => Step::Silence {
            seconds: *[1, 95, 125].choose(rng).unwrap(),
            heard: std::array::from_fn(|_| rng.random_bool(0.5)),
        },
        45 => Step::Forget { node },
        46..52 => Step::Create {
            node,
            name: rng.random_range(0..NAMES.len()),
            namespace: rng.random_range(0..NAMESPACES.len()),
            color: color(rng),
            short: rng.random_bool(0.3),
        },
        52..58 => Step::Patch {
            pick,
            color: color(rng),
            form: *[Form::Beta, Form::Alpha].choose(rng).unwrap(),
            dry: rng.random_bool(0.1),
        },
        58 => Step::Finalize {
            pick,
            on: rng.random_bool(0.6),
        },
        59..61 => Step::Delete { pick },
        61..64 => Step::Release { node, pick },
        64..66 => Step::Pause { node, pick },
        66..76 => Step::Watch {
            view: view(rng),
            from: start(rng),
            bookmarks: rng.random_bool(0.7),
            timeout: rng
                .random_bool(0.3)
                .then(|| *[1, 5, 100].choose(rng).unwrap()),
        },
        76..78 => Step::Disconnect { pick },
        78..82 => Step::Reconnect {
            pick,
            list: rng.random_bool(0.3),
        },
        82 => Step::Stall { pick },
        83 => Step::Unstall { pick },
        84..92 => Step::List {
            view: view(rng),
            start: start(rng),
            exact: *[Exactness::Unset, Exactness::Exact, Exactness::NotOlderThan]
                .choose(rng)
                .unwrap(),
            limit: rng.random_bool(0.6).then(|| rng.random_range(1..4)),
        },
        92..97 => Step::NextPage { pick },
        97 => Step::ListAhead {
            view: view(rng),
            then: rng.random_bool(0.7),
        },
        _ => Step::Idle,
    }
}

fn color(rng: &mut SmallRng) -> Option<usize> {
    rng.random_bool(0.75)
        .then(|| rng.random_range(0..COLORS.len()))
}

fn start(rng: &mut SmallRng) -> Start {
    match rng.random_range(0..10) {
        0 => Start::Unset,
        1 => Start::Zero,
        2 => Start::Ahead(rng.random_range(1..4)),
        3 | 4 => Start::Initial(None),
        5 => Start::Initial(Some(rng.random_range(0..30))),
        6 | 7 => Start::Back(rng.random_range(0..8)),
        _ => Start::Back(rng.random_range(0..60)),
    }
}

fn view(rng: &mut SmallRng) -> View {
    let color = *COLORS.choose(rng).unwrap();
    let name = *NAMES.choose(rng).unwrap();
    let selector = match rng.random_range(0..14) {
        0..2 => Selector::Color(color),
        2 => Selector::NotColor(color),
        3 => Selector::Colorless,
        4..6 => Selector::Running,
        6 => Selector::Node(rng.random_range(0..N_NODES)),
        7 => Selector::Named(name),
        8 => Selector::NotNamed(name),
        _ => Selector::Everything,
    };
    View {
        form: *Form::ALL.choose(rng).unwrap(),
        namespace: NAMESPACES
            .choose(rng)
            .copied()
            .filter(|_| rng.random_bool(0.4)),
        selector,
    }
}
