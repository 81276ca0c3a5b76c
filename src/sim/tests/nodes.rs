//! Nodes: draining, pools, stops, and fleets of many.

use super::*;

#[tokio::test]
async fn a_draining_node_takes_nothing_new_and_keeps_what_it_has() {
    let fleet = start(mk_options()).await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let node_at = at(&client, node);
    granted(node_at.claim(&named("default/a")).await);
    for _ in 0..2 {
        let info = node_at.drain().await.unwrap();
        assert_eq!(
            (info.draining, info.pools[0].warm, info.claimed),
            (true, 0, 1)
        );
    }
    let refused = node_at.claim(&named("default/b")).await.unwrap_err();
    assert!(matches!(refused, Error::AtCapacity { .. }), "{refused:?}");
    let info = node_at.undrain().await.unwrap();
    assert_eq!((info.draining, info.pools[0].refilling), (false, 4));
    fleet.advance(Duration::from_secs(1));
    assert_eq!(node.warm(&python()), 4);
}

#[tokio::test]
async fn the_set_of_pools_is_replaced_whole_or_not_at_all() {
    let fleet = start(mk_options()).await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let pool = |template: &str, warm| PoolSpec {
        key: key(template),
        warm,
        warm_max: 0,
        idle_hibernate_seconds: 0,
    };
    let info = at(&client, node)
        .put_pools(&[pool("go", 50_000), pool("python:3.12", 2)])
        .await
        .unwrap();
    let shown: Vec<_> = info
        .pools
        .iter()
        .map(|p| (p.key.template.as_str(), p.warm, p.refilling, p.target))
        .collect();
    assert_eq!(shown, [("go", 0, 50_000, 50_000), ("python:3.12", 2, 0, 2)]);
    fleet.advance(Duration::from_secs(1));
    assert_eq!(node.warm(&key("go")), 50_000);
    let twice = at(&client, node)
        .put_pools(&[pool("a", 1), pool("a", 2)])
        .await
        .unwrap_err();
    assert!(matches!(twice, Error::BadRequest { .. }), "{twice:?}");
    let nothing = PoolSpec {
        key: key(""),
        ..pool("", 1)
    };
    assert!(at(&client, node).put_pools(&[nothing]).await.is_err());
    assert_eq!(at(&client, node).info().await.unwrap().pools.len(), 2);
    at(&client, node).put_pools(&[]).await.unwrap();
    assert_eq!(node.warm(&python()), 0);
}

#[tokio::test]
async fn a_stopped_node_refuses_and_comes_back_with_what_it_held() {
    let fleet = start(mk_options()).await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let id = granted(at(&client, node).claim(&named("default/a")).await).id;
    node.stop().await;
    assert!(!node.is_up());
    for _ in 0..3 {
        let down = at(&client, node).sandbox(&id).await.unwrap_err();
        assert!(
            matches!(down, Error::Unreachable(_) | Error::Interrupted(_)),
            "{down:?}"
        );
    }
    node.start().await;
    at(&client, node).sandbox(&id).await.unwrap();
}

#[tokio::test]
async fn a_dropped_fleet_closes_its_ports() {
    let fleet = start(mk_options()).await;
    let (address, client) = (fleet.nodes()[0].address().clone(), mk_client("sim"));
    client.node(&address, SOON).healthz().await.unwrap();
    drop(fleet);
    let closed = |error: Error| matches!(error, Error::Unreachable(_));
    eventually(async || {
        client
            .node(&address, SOON)
            .healthz()
            .await
            .is_err_and(closed)
    })
    .await;
}

#[tokio::test]
async fn four_hundred_nodes_share_the_sandboxes_evenly() {
    let fleet = start(Options {
        nodes: 400,
        sandboxes: 4_001,
        ..mk_options()
    })
    .await;
    let inventories = fleet.inventories();
    assert_eq!(
        (inventories.len(), inventories[7].node.as_str()),
        (400, "sim-0007")
    );
    let totals: Vec<_> = inventories
        .iter()
        .map(|inventory| inventory.total.unwrap())
        .collect();
    assert_eq!(
        (totals[0], totals[1], totals.iter().sum::<i64>()),
        (11, 10, 4_001)
    );
    let names: BTreeSet<_> = inventories
        .iter()
        .flat_map(|i| &i.entries)
        .map(|entry| &entry.name)
        .collect();
    let ids: BTreeSet<_> = inventories
        .iter()
        .flat_map(|i| &i.entries)
        .map(|entry| &entry.id)
        .collect();
    assert_eq!((names.len(), ids.len()), (4_001, 4_001));
    let client = mk_client("sim");
    let last: &NodeAddress = fleet.nodes()[399].address();
    assert_eq!(client.node(last, SOON).sandboxes().await.unwrap().len(), 10);
}

#[tokio::test]
async fn one_seed_gives_one_fleet() {
    let seeded = |seed| Options {
        sandboxes: 20,
        seed: Some(seed),
        ..mk_options()
    };
    let ids = async |seed| {
        let fleet = start(seeded(seed)).await;
        let entries = fleet.nodes()[0].inventory().entries;
        entries
            .into_iter()
            .map(|entry| entry.id)
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(1).await, ids(1).await);
    assert_ne!(ids(1).await, ids(2).await);
}

#[tokio::test]
async fn the_journal_tells_how_each_vm_began_and_ended() {
    let fleet = start(Options {
        journal: 3,
        first_node: 7,
        first_advertised_port: 4_000,
        ..mk_options()
    })
    .await;
    let node = &fleet.nodes()[0];
    assert_eq!(node.name().as_str(), "sim-0007");
    assert_eq!(node.inventory().address, "127.0.0.1:4000");
    let [reaped, lost] = ["team/a", "team/b"].map(|it| node.plant(Planted::new(it, python())));
    assert!(node.lose(&lost) && !node.lose(&lost));
    fleet.advance(Duration::from_secs(600));
    let told = node.journal(0).into_iter();
    let told: Vec<_> = told
        .map(|entry| (entry.sequence, entry.event, entry.id, entry.claim_ref))
        .collect();
    let line = |sequence, event, id: &ClaimId, claim_ref: &str| {
        (
            sequence,
            event,
            id.as_str().to_owned(),
            claim_ref.to_owned(),
        )
    };
    // The first is forgotten.
    let expected = [
        line(1, JournalEvent::Planted, &lost, "team/b"),
        line(2, JournalEvent::Lost, &lost, "team/b"),
        line(3, JournalEvent::Reaped, &reaped, "team/a"),
    ];
    assert_eq!(told, expected);
    assert_eq!(node.journal(3).len(), 1);
}

#[tokio::test]
async fn a_clock_that_is_off_shows_in_every_answer() {
    let fleet = start(Options {
        nodes: 2,
        clock_offsets: vec![3_600, -60],
        ..mk_options()
    })
    .await;
    let (client, node) = (mk_client("sim"), &fleet.nodes()[1]);
    for (node, ahead) in fleet.nodes().iter().zip([3_600, -60]) {
        let at = at(&client, node);
        let reply = granted(at.claim(&named("default/a")).await);
        let offset = client.clock_offset(node.address()).unwrap().as_secs();
        assert!((offset - ahead).abs() <= 1, "{offset}");
        let left = |deadline: UnixTime| deadline.as_secs() - UnixTime::now().as_secs();
        let ours = left(reply.deadline.unwrap());
        assert!((295..=302).contains(&ours), "{ours} s are left");
        // As the node says it.
        let plain = client.clone().in_node_time();
        let row = plain.node(node.address(), SOON).sandbox(&reply.id).await;
        let theirs = left(row.unwrap().row.deadline.unwrap());
        assert!((theirs - ours - ahead).abs() <= 2, "{theirs} and {ours}");
    }
    // A claim of a minute's length that is a minute behind is over as soon as the clock is right.
    let claim = node.plant(Planted {
        ttl_seconds: 60,
        ..Planted::new("default/b", python())
    });
    node.set_clock(0);
    assert!(!client.take_changed_clocks().is_empty());
    at(&client, node).info().await.unwrap();
    let changed = client.take_changed_clocks();
    assert_eq!(changed.len(), 1);
    assert!(changed[0].1.is_zero() && changed[0].0 == *node.address());
    fleet.advance(Duration::from_secs(6));
    assert!(node.token_of(&claim).is_none());
}
