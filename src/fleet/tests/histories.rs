//! Random histories against what must always hold.

use proptest::prelude::*;

use super::*;

/// One step of a random history on two nodes, three ids each and three names.
#[derive(Clone, Debug)]
enum Step {
    Publish {
        node: usize,
        listed: Vec<(usize, usize)>,
    },
    Read {
        node: usize,
        listed: Vec<(usize, usize)>,
    },
    Create {
        node: usize,
        claim: usize,
        name: usize,
    },
    Release {
        node: usize,
        claim: usize,
    },
    Forget {
        node: usize,
    },
    Wait {
        seconds: u64,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let listed = || prop::collection::vec((0_usize..3, 0_usize..4), 0..4);
    prop_oneof![
        3 => (0_usize..2, listed()).prop_map(|(node, listed)| Step::Publish { node, listed }),
        2 => (0_usize..2, listed()).prop_map(|(node, listed)| Step::Read { node, listed }),
        3 => (0_usize..2, 3_usize..9, 0_usize..3).prop_map(|(node, claim, name)| Step::Create { node, claim, name }),
        2 => (0_usize..2, 0_usize..9).prop_map(|(node, claim)| Step::Release { node, claim }),
        1 => (0_usize..2).prop_map(|node| Step::Forget { node }),
        1 => (1_u64..100).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_one_claim_is_one_object_and_the_released_stay_dead(steps in prop::collection::vec(any_step(), 1..50)) {
        let mut bench = Bench::new();
        let mut released: BTreeSet<(NodeName, ClaimId)> = BTreeSet::new();
        let name = |index: usize| ["default/a", "default/b", "default/sb-0", ""][index];
        let rows = |listed: &[(usize, usize)]| -> Vec<Row> {
            listed.iter().map(|(claim, index)| Row {
                claimed_at: Some(UnixTime::from_secs(START - *claim as i64 % 2)),
                ..mk_row(&format!("sb_{claim}"), name(*index))
            }).collect()
        };
        for step in steps {
            match step {
                Step::Publish { node, listed } => { bench.publish(["n0", "n1"][node], &rows(&listed)); }
                Step::Read { node, listed } => {
                    let node: NodeName = ["n0", "n1"][node].into();
                    if let Some(guard) = bench.fleet.begin_read(&node) {
                        assert!(bench.fleet.read(guard, &rows(&listed), bench.now()));
                    }
                }
                Step::Create { node, claim, name: index } => {
                    let (namespace, name) = name(index).split_once('/').unwrap();
                    if let Ok(reserved) = bench.fleet.reserve(SandboxKey::new(namespace, name)) {
                        let granted = mk_granted(["n0", "n1"][node], &format!("sb_{claim}"), bench.now().wall);
                        // A daemon never grants one id twice.
                        if bench.fleet.by_claim(&granted.node, &granted.claim).is_none()
                            && !released.contains(&(granted.node.clone(), granted.claim.clone())) {
                            let _ = bench.fleet.granted(&reserved, granted, &[], bench.now());
                        }
                    }
                }
                Step::Release { node, claim } => {
                    let (node, claim): (NodeName, ClaimId) = (["n0", "n1"][node].into(), format!("sb_{claim}").into());
                    if bench.fleet.released(&node, &claim, bench.now()).is_some() {
                        released.insert((node, claim));
                    }
                }
                Step::Forget { node } => {
                    let node: NodeName = ["n0", "n1"][node].into();
                    bench.fleet.forget_node(&node);
                    released.retain(|(of, _)| *of != node);
                }
                Step::Wait { seconds } => {
                    bench.elapsed += seconds;
                    bench.fleet.tick(bench.now());
                }
            }
            let store = bench.fleet.store();
            let page = store.page(&Scope::All, None, store.head(), 1_000).unwrap();
            let mut seen = BTreeSet::new();
            for item in &page.items {
                let sandbox = &item.value;
                let id = (sandbox.node.clone(), sandbox.claim.clone());
                prop_assert!(!released.contains(&id), "{id:?} came back");
                prop_assert!(seen.insert(id), "a claim is listed twice");
                let by_claim = bench.fleet.by_claim(&sandbox.node, &sandbox.claim);
                prop_assert_eq!(by_claim.as_ref(), Some(item), "list and node agree");
            }
            let held: usize = bench.fleet.lock().nodes.values().map(|node| node.claims.iter().count()).sum();
            prop_assert_eq!(held, page.items.len(), "nothing is held that is not listed");
            let losers: usize = page.items.iter().filter(|item| item.value.name_taken).count();
            prop_assert_eq!(losers, bench.fleet.counts().name_conflicts);
        }
    }
}
