//! What becomes of a sandbox: sleep, leases, children, checkpoints.

use super::*;

#[tokio::test]
async fn a_sandbox_sleeps_wakes_and_is_renewed() {
    let fleet = start(mk_options()).await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let node_at = at(&client, node);
    let id = granted(node_at.claim(&named("default/a")).await).id;
    for _ in 0..2 {
        node_at.hibernate(&id).await.unwrap();
        let row = node_at.sandbox(&id).await.unwrap().row;
        assert!(row.hibernated && !row.archived);
        assert!(!node_at.stats(&id).await.unwrap().mem_used_measured);
    }
    assert_eq!(node_at.info().await.unwrap().hibernated, 1);
    for _ in 0..2 {
        node_at.wake(&id).await.unwrap();
        assert!(!node_at.sandbox(&id).await.unwrap().row.hibernated);
    }
    let counters = node.counters();
    assert_eq!((counters.hibernates, counters.wakes), (1, 1));
    let now = UnixTime::now();
    for (asked, granted) in [
        (Duration::from_millis(59_001), 60),
        (Duration::ZERO, 300),
        (Duration::MAX, 86_400),
    ] {
        let asked = asked.min(Duration::from_secs(u64::from(u32::MAX)));
        let lease = node_at
            .renew(&id, asked)
            .await
            .unwrap()
            .since(now)
            .as_secs();
        assert!(
            (granted - 1..=granted + 2).contains(&lease),
            "{lease} for {asked:?}"
        );
    }
}

#[tokio::test]
async fn a_lease_ends_at_the_next_tick_or_is_archived() {
    let fleet = start(mk_options()).await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let node_at = at(&client, node);
    let gone = granted(node_at.claim(&named("default/gone")).await).id;
    let mut keep = named("default/kept");
    keep.on_expire = Some(OnExpire::Archive);
    let kept = granted(node_at.claim(&keep).await).id;
    fleet.advance(Duration::from_secs(299));
    assert_eq!(node_at.sandboxes().await.unwrap().len(), 2);
    fleet.advance(Duration::from_secs(7));
    let rows = node_at.sandboxes().await.unwrap();
    assert_eq!(
        rows.iter()
            .map(|row| (&row.id, row.archived, row.deadline))
            .collect::<Vec<_>>(),
        [(&kept, true, None)]
    );
    assert!(matches!(
        node_at.sandbox(&gone).await.unwrap_err(),
        Error::NotFound { .. }
    ));
    assert!(matches!(
        node_at.renew(&kept, SOON).await.unwrap_err(),
        Error::Conflict { .. }
    ));
    node_at.wake(&kept).await.unwrap();
    let row = node_at.sandbox(&kept).await.unwrap().row;
    assert!(!row.archived && row.deadline.is_some());
    let counters = node.counters();
    assert_eq!(
        (counters.reaps, counters.archives, counters.unarchives),
        (1, 1, 1)
    );
}

#[tokio::test]
async fn children_are_all_made_or_none() {
    let fleet = start(Options {
        max_claims: 4,
        ..mk_options()
    })
    .await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let node_at = at(&client, node);
    let parent = granted(node_at.claim(&named("default/a")).await).id;
    let fork = |count| ForkRequest {
        count,
        ttl_seconds: 60,
        claim_ref_prefix: "default/a-".to_owned(),
    };
    let too_many = node_at.fork(&parent, &fork(4)).await.unwrap_err();
    assert!(matches!(too_many, Error::AtCapacity { .. }), "{too_many:?}");
    assert_eq!(node.claimed(), 1);
    let children = node_at.fork(&parent, &fork(3)).await.unwrap();
    assert_eq!(children.len(), 3);
    for child in &children {
        let row = node_at.sandbox(&child.id).await.unwrap().row;
        assert_eq!(row.claim_ref, format!("default/a-{}", child.id));
    }
    for count in [0, 17] {
        let error = node_at.fork(&parent, &fork(count)).await.unwrap_err();
        assert!(matches!(error, Error::BadRequest { .. }), "{error:?}");
    }
    let full = node_at.claim(&named("default/b")).await.unwrap_err();
    assert!(matches!(full, Error::AtCapacity { .. }), "{full:?}");
    assert!(node_at.info().await.unwrap().at_capacity);
}

#[tokio::test]
async fn a_checkpoint_is_listed_claimed_and_deleted_on_every_node() {
    let fleet = start(Options {
        nodes: 2,
        ..mk_options()
    })
    .await;
    let (client, [owner, other]) = (mk_client("sim"), fleet.nodes()) else {
        panic!("two nodes were asked for");
    };
    let source = granted(at(&client, owner).claim(&named("default/a")).await).id;
    let first = at(&client, owner)
        .checkpoint(&source, Some("nightly"))
        .await
        .unwrap();
    assert_eq!(
        (first.name.as_deref(), &first.sandbox_id, &first.key),
        (Some("nightly"), &source, &python())
    );
    fleet.advance(Duration::from_secs(1));
    let second = at(&client, owner).checkpoint(&source, None).await.unwrap();
    assert_eq!(
        at(&client, owner).checkpoints().await.unwrap(),
        [second.clone(), first.clone()]
    );

    let mut request = CheckpointClaim::default();
    let redirect = at(&client, other)
        .checkpoint_claim(&first.id, &request)
        .await
        .unwrap();
    assert!(
        matches!(&redirect, Claimed::Redirect { addresses, .. } if addresses == &[owner.address().clone()]),
        "{redirect:?}"
    );
    request.no_redirect = true;
    let missed = at(&client, other)
        .checkpoint_claim(&first.id, &request)
        .await
        .unwrap_err();
    assert!(matches!(missed, Error::NotFound { .. }), "{missed:?}");
    let reply = granted(
        at(&client, owner)
            .checkpoint_claim(&first.id, &request)
            .await,
    );
    assert_eq!(reply.from_checkpoint.as_ref(), Some(&first.id));
    let row = at(&client, owner).sandbox(&reply.id).await.unwrap().row;
    assert_eq!(
        (row.from_checkpoint.as_ref(), row.claim_ref.as_str()),
        (Some(&first.id), "")
    );

    at(&client, owner)
        .delete_checkpoint(&first.id)
        .await
        .unwrap();
    let elsewhere = at(&client, other)
        .delete_checkpoint(&second.id)
        .await
        .unwrap_err();
    assert!(matches!(elsewhere, Error::NotFound { .. }), "{elsewhere:?}");
    assert_eq!(at(&client, owner).checkpoints().await.unwrap(), []);
    let odd = at(&client, owner)
        .delete_checkpoint(&SnapshotId::from("../claim?x"))
        .await
        .unwrap_err();
    assert!(
        matches!(&odd, Error::NotFound { .. }),
        "an id is one segment, whatever it holds: {odd:?}"
    );
}
