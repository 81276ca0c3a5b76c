//! The state machine alone, without nodes and without waiting.

use super::*;
use crate::warmpool::tests::mk_key;

/// One node, its answers and the time, without a network.
struct One {
    members: Members,
    health: Health,
    wanted: Targets,
    keys: BTreeSet<PoolKey>,
    now: Instant,
}

impl One {
    /// It was read and has nothing; `a` is wanted there, and is on record.
    fn new() -> Self {
        let mut one = Self {
            members: Members::new(Written::new(), false),
            health: Health::Fresh,
            wanted: Targets::from([(mk_key("a"), 2)]),
            keys: BTreeSet::from([mk_key("a")]),
            now: Instant::now(),
        };
        let read = one.call().unwrap();
        one.answered(&read, Targets::new());
        assert!(one.step().record.is_some());
        one.members.recorded(true);
        one
    }

    fn step(&mut self) -> Steps {
        let node = NodeState {
            name: "n1".into(),
            address: "10.0.0.1:80".parse().ok(),
            health: self.health,
            draining: false,
            cordoned: false,
            pools: Vec::new(),
        };
        self.members.observe(&[node], self.now);
        let wanted = BTreeMap::from([("n1".into(), self.wanted.clone())]);
        self.members.step(&wanted, &self.keys, self.now)
    }

    fn call(&mut self) -> Option<Call> {
        self.step().calls.pop()
    }

    fn answered(&mut self, call: &Call, has: Targets) {
        self.members.answered(call, has, self.now);
    }

    fn refused(&mut self, call: &Call) {
        let text = "node has no egress attachment".to_owned();
        let error = sandboxd::Error::Conflict { text };
        self.members.failed(call, &error, self.now);
    }

    fn refuses(&self) -> usize {
        self.members
            .iter()
            .map(|(_, one)| one.refuses().count())
            .sum()
    }

    fn stage(&self) -> Stage {
        self.members.iter().next().unwrap().1.stage().clone()
    }
}

#[test]
fn a_refused_pool_is_tried_with_no_vms_until_the_node_takes_it() {
    let mut one = One::new();
    let put = one.call().unwrap();
    assert_eq!(put.ask, Ask::Put(one.wanted.clone()));
    one.refused(&put);
    // Its VMs are wanted elsewhere from now on.
    one.wanted.clear();
    let no_vms = Targets::from([(mk_key("a"), 0)]);
    for _ in 0..3 {
        assert_eq!((one.refuses(), one.call()), (1, None));
        one.now += Duration::from_secs(301);
        let tried = one.call().unwrap();
        assert_eq!((&tried.ask, one.refuses()), (&Ask::Put(no_vms.clone()), 1));
        one.refused(&tried);
    }
    // A daemon that was away may be another one.
    one.health = Health::Stale;
    assert_eq!(one.call(), None);
    one.health = Health::Fresh;
    let read = one.call().unwrap();
    one.answered(&read, Targets::new());
    let tried = one.call().unwrap();
    one.answered(&tried, no_vms);
    assert_eq!(one.refuses(), 0);
}

#[test]
fn a_refusal_of_a_pool_that_nobody_wants_any_more_is_forgotten() {
    let mut one = One::new();
    let put = one.call().unwrap();
    one.refused(&put);
    let keys = std::mem::take(&mut one.keys);
    let wanted = std::mem::take(&mut one.wanted);
    assert_eq!(one.call(), None);
    assert_eq!(one.refuses(), 0);
    (one.keys, one.wanted) = (keys, wanted);
    assert_eq!(one.call(), Some(put));
}

#[test]
fn a_pool_that_leaves_the_record_is_not_written_until_it_is_there_again() {
    for is_saved in [true, false] {
        let mut one = One::new();
        // Another pool comes, and `a` goes: both are one save.
        let a = std::mem::replace(&mut one.wanted, Targets::from([(mk_key("b"), 1)]));
        let keys = std::mem::replace(&mut one.keys, BTreeSet::from([mk_key("b")]));
        assert!(one.step().record.is_some());
        // `a` is wanted again before it is saved.
        (one.wanted, one.keys) = (a, keys);
        let steps = one.step();
        assert!(steps.calls.is_empty() && steps.record.is_none());
        one.members.recorded(is_saved);
        assert!(one.step().record.is_some(), "saved: {is_saved}");
        one.members.recorded(true);
        let put = one.call().unwrap();
        let has = one.wanted.clone();
        one.answered(&put, has.clone());
        assert_eq!(one.stage(), Stage::Driven(has));
    }
}

#[test]
fn what_a_daemon_said_that_the_node_has_left_is_not_the_nodes() {
    let (mut members, now) = (Members::new(Written::new(), false), Instant::now());
    let at = |address: &str| NodeState {
        name: "n1".into(),
        address: address.parse().ok(),
        health: Health::Fresh,
        draining: false,
        cordoned: false,
        pools: Vec::new(),
    };
    let due = |members: &mut Members, address| {
        members.observe(&[at(address)], now);
        members
            .step(&BTreeMap::new(), &Default::default(), now)
            .calls
    };
    let first = due(&mut members, "10.0.0.1:80");
    assert_eq!(first[0].ask, Ask::Read);
    assert!(due(&mut members, "10.0.0.2:80").is_empty(), "one at a time");
    let theirs = Targets::from([(mk_key("theirs"), 3)]);
    members.answered(&first[0], theirs, now);
    assert_eq!(*members.iter().next().unwrap().1.stage(), Stage::Unread);
    let second = due(&mut members, "10.0.0.2:80");
    assert_eq!(second[0].address, "10.0.0.2:80".parse().unwrap());
    members.answered(&second[0], Targets::new(), now);
    let driven = Stage::Driven(Targets::new());
    assert_eq!(*members.iter().next().unwrap().1.stage(), driven);
}
