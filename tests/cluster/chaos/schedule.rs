//! What happens, chosen by a seed alone.

use std::fmt;

use rand::{Rng as _, SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};

use super::line::Line;

pub(super) const N_NODES: usize = 3;
/// The first ones have an agent beside them; of the others the server knows what they publish, and what it asks them.
pub(super) const N_AGENTS: usize = 2;
/// Few, so that they are fought over.
pub(super) const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// What somebody else claims as well. Nobody deletes it.
pub(super) const USURPED: &str = "theirs";
pub(super) const COLOURS: [&str; 3] = ["red", "green", "blue"];
/// Longest pause before a step, in milliseconds. Mostly there is a short one or none.
const LONGEST_PAUSE: u64 = 120;

/// One thing that happens. Users' calls go on while the next steps begin.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// So many creates of one name at once. `patience`: milliseconds after which the clients leave.
    Create {
        name: usize,
        at_once: usize,
        patience: Option<u64>,
    },
    /// Many calls at once.
    Rush {
        calls: Vec<(Rushed, usize)>,
    },
    /// A create of a name that the server makes up.
    Generate,
    Delete {
        name: usize,
        meant: Meant,
    },
    /// A create, a delete while no node can be reached, and the end of the server as soon as that is answered.
    DeleteAndKill {
        name: usize,
    },
    /// A create, and a delete to whose release every node gives this answer.
    DeleteInVain {
        name: usize,
        how: Misbehaviour,
    },
    Pause {
        name: usize,
    },
    Resume {
        name: usize,
    },
    Fork {
        name: usize,
    },
    Label {
        name: usize,
        colour: usize,
    },
    List,
    Watch,

    /// Somebody else claims a VM on the node, maybe under a name that is used here.
    Elsewhere {
        node: usize,
        name: Option<usize>,
    },
    /// Somebody else claims a VM of every node under a name that a user asks for at the same moment, and the answers to claims
    /// are lost.
    Usurp,
    /// The node loses one of its VMs and publishes that, so that it is asked what it still has. `slow`: how many milliseconds later
    /// its answer comes; `None`: it is lost.
    Lose {
        node: usize,
        pick: u32,
        slow: Option<u64>,
    },
    /// What the node says now is published so many milliseconds later, unless another publication comes before.
    PublishLate {
        node: usize,
        millis: u64,
    },
    /// What is between the server and a node.
    Line {
        node: usize,
        line: Line,
    },
    /// The next call of this path to the node ends so, without anything being done.
    Misbehave {
        node: usize,
        path: &'static str,
        how: Misbehaviour,
    },
    /// The node's daemon ends, with its VMs kept; and comes back.
    NodeDown {
        node: usize,
    },
    NodeUp {
        node: usize,
    },
    /// The node's process stands still for so many milliseconds.
    FreezeNode {
        node: usize,
        millis: u64,
    },
    /// The server's process does.
    FreezeServer {
        millis: u64,
    },
    /// The agent of the node is killed, and comes back at once or some steps later.
    KillAgent {
        node: usize,
        back: bool,
    },
    AgentUp {
        node: usize,
    },
    FreezeAgent {
        node: usize,
        millis: u64,
    },
    /// What is between the server and an agent.
    AgentLine {
        node: usize,
        line: Line,
    },
    KillServer,
}

/// A call of a rush.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rushed {
    Create,
    Generate,
    Delete(Meant),
    Pause,
    List,
}

/// Which object a delete names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meant {
    /// Whatever has the name.
    Any,
    /// By its uid, the one that was acknowledged last.
    Last,
    /// By its uid, the one that was acknowledged first, and has often been deleted since.
    First,
}

/// How a node answers wrongly.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misbehaviour {
    Unauthorized,
    NotFound,
    Failed,
    WrongJson,
    /// A redirect to the next node.
    Redirect,
}

/// What happens, and in which order.
#[derive(Clone)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    /// Steps, each with the milliseconds before it.
    pub(super) steps: Vec<(u64, Step)>,
}

impl Schedule {
    pub(super) fn of(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let length = rng.random_range(20..=40);
        // Half of the schedules: what is lost with a killed server excuses a lot.
        let kills = rng.random_bool(0.5);
        let steps = (0..length).map(|_| {
            let pause = match rng.random_bool(0.4) {
                true => 0,
                false => rng.random_range(0..=LONGEST_PAUSE),
            };
            (pause, step(&mut rng, kills))
        });
        Self {
            seed,
            steps: steps.collect(),
        }
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, steps } = self;
        writeln!(f, "seed {seed}")?;
        let mut steps = steps.iter().enumerate();
        steps.try_for_each(|(number, (pause, step))| {
            writeln!(f, "{number:>4} after {pause:>3} ms {step:?}")
        })
    }
}

fn step(rng: &mut SmallRng, kills: bool) -> Step {
    let (node, name) = (
        rng.random_range(0..N_NODES),
        rng.random_range(0..NAMES.len()),
    );
    match rng.random_range(0..108) {
        0..14 => Step::Create {
            name,
            at_once: *[1, 2, 4].choose(rng).unwrap(),
            patience: rng.random_bool(0.2).then(|| rng.random_range(1..60)),
        },
        14..32 => Step::Rush {
            calls: (0..rng.random_range(4..12))
                .map(|_| (rush(rng), rng.random_range(0..NAMES.len())))
                .collect(),
        },
        32..34 => Step::Generate,
        34..43 => Step::Delete {
            name,
            meant: meant(rng),
        },
        43..47 => Step::Pause { name },
        47 => Step::Resume { name },
        48 => Step::Fork { name },
        49..51 | 99 => Step::Label {
            name,
            colour: rng.random_range(0..COLOURS.len()),
        },
        51..55 => Step::List,
        55 => Step::Watch,
        56 => Step::Usurp,
        57 | 80 => Step::Elsewhere {
            node,
            name: rng.random_bool(0.3).then_some(name),
        },
        58..62 => Step::Lose {
            node,
            pick: rng.random(),
            slow: rng.random_bool(0.6).then(|| rng.random_range(200..1_500)),
        },
        62..65 => Step::PublishLate {
            node,
            millis: rng.random_range(50..600),
        },
        65..80 => Step::Line {
            node,
            line: line(rng),
        },
        81..84 => misbehave(rng, node),
        84..88 => {
            use Misbehaviour::{Failed, NotFound, Unauthorized, WrongJson};
            let how = [Unauthorized, NotFound, Failed, WrongJson];
            Step::DeleteInVain {
                name,
                how: *how.choose(rng).unwrap(),
            }
        }
        88..90 => Step::NodeDown { node },
        90..92 => Step::NodeUp { node },
        92..94 => Step::FreezeNode {
            node,
            millis: rng.random_range(100..2_500),
        },
        94 => Step::FreezeServer {
            millis: rng.random_range(50..800),
        },
        95 | 96 if kills => Step::DeleteAndKill { name },
        97..99 if kills => Step::KillServer,
        100..108 => trouble_agent(rng),
        _ => Step::List,
    }
}

fn trouble_agent(rng: &mut SmallRng) -> Step {
    let node = rng.random_range(0..N_AGENTS);
    match rng.random_range(0..8) {
        0..3 => Step::KillAgent {
            node,
            back: rng.random_bool(0.6),
        },
        3 => Step::AgentUp { node },
        4 | 5 => Step::FreezeAgent {
            node,
            millis: rng.random_range(100..2_500),
        },
        _ => Step::AgentLine {
            node,
            line: agent_line(rng),
        },
    }
}

fn agent_line(rng: &mut SmallRng) -> Line {
    match rng.random_range(0..5) {
        0 | 1 => Line::Open,
        2 => Line::Cut,
        3 => Line::Held,
        _ => Line::Late {
            millis: rng.random_range(20..400),
        },
    }
}

fn meant(rng: &mut SmallRng) -> Meant {
    let meant = [Meant::Any, Meant::Any, Meant::Last, Meant::First];
    *meant.choose(rng).unwrap()
}

fn rush(rng: &mut SmallRng) -> Rushed {
    match rng.random_range(0..10) {
        0..3 => Rushed::Create,
        3..5 => Rushed::Generate,
        5..7 => Rushed::Delete(meant(rng)),
        7 => Rushed::Pause,
        _ => Rushed::List,
    }
}

fn line(rng: &mut SmallRng) -> Line {
    match rng.random_range(0..12) {
        0..3 => Line::Open,
        3 => Line::Cut,
        4 => Line::Held,
        5 => Line::Late {
            millis: rng.random_range(20..400),
        },
        6 | 7 => Line::Lossy {
            path: "/v1/claim",
            once: rng.random_bool(0.3),
        },
        8 => Line::Lossy {
            path: "/v1/",
            once: false,
        },
        9 | 10 => Line::Stuck {
            path: "/v1/claim",
            // Longer than the server waits, so that the node grants what nobody waits for.
            millis: rng.random_range(2_050..4_500),
        },
        _ => Line::Lossy {
            path: "/release",
            once: rng.random_bool(0.5),
        },
    }
}

fn misbehave(rng: &mut SmallRng, node: usize) -> Step {
    use Misbehaviour::{Failed, NotFound, Redirect, Unauthorized, WrongJson};
    let path = *[
        "/v1/sandboxes/*/release",
        "/v1/sandboxes/*/release",
        "/v1/claim",
        "/v1/sandboxes",
    ]
    .choose(rng)
    .unwrap();
    let how = match path {
        "/v1/claim" => [Unauthorized, Failed, WrongJson, Redirect].choose(rng),
        _ => [Unauthorized, NotFound, Failed, WrongJson].choose(rng),
    };
    Step::Misbehave {
        node,
        path,
        how: *how.unwrap(),
    }
}
