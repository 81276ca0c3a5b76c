//! The client against simulated nodes, over real sockets. What the two disagree on fails here.

use std::{collections::BTreeSet, time::Duration};

use super::{Fault, FaultKind, Fleet, Generation, Handle, Latency, Options, Planted, Tenant};
use crate::{
    api::{ClaimId, NodeAddress, PoolKey, SnapshotId, Token},
    meta::UnixTime,
    sandboxd::{
        CheckpointClaim, ClaimReply, ClaimRequest, Claimed, Client, ClientOptions, Error,
        ForkRequest, Node, OnExpire, PoolSpec, TokenSource,
    },
};

const SOON: Duration = Duration::from_secs(10);
const BRIEF: Duration = Duration::from_millis(300);

fn key(template: &str) -> PoolKey {
    PoolKey {
        template: template.into(),
        net: "none".into(),
        size: "small".into(),
    }
}

fn python() -> PoolKey {
    key("python:3.12")
}

/// One node without delays.
fn mk_options() -> Options {
    Options {
        nodes: 1,
        latency: Latency {
            clone: Duration::ZERO,
            snapshot: Duration::ZERO,
            wake: Duration::ZERO,
            ..Latency::default()
        },
        ..Options::default()
    }
}

async fn start(options: Options) -> Fleet {
    Fleet::start(options).await.unwrap()
}

fn mk_client(token: &str) -> Client {
    Client::new(ClientOptions {
        token: TokenSource::Fixed(Token::from(token.to_owned())),
        ca_file: None,
    })
    .unwrap()
}

fn at<'a>(client: &'a Client, node: &'a Handle) -> Node<'a> {
    client.node(node.address(), SOON)
}

fn named(claim_ref: &str) -> ClaimRequest {
    ClaimRequest {
        claim_ref: claim_ref.to_owned(),
        ..ClaimRequest::new(python())
    }
}

#[track_caller]
fn granted(claimed: Result<Claimed, Error>) -> ClaimReply {
    match claimed.unwrap() {
        Claimed::Granted(reply) => reply,
        Claimed::Redirect { addresses, .. } => panic!("redirected to {addresses:?}"),
    }
}

#[tokio::test]
async fn a_claim_is_listed_read_and_released() {
    let fleet = start(mk_options()).await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let mut request = named("default/a");
    request.ttl_seconds = 60;
    request.metadata.insert("team".to_owned(), "x".to_owned());
    let before = UnixTime::now();
    let reply = granted(at(&client, node).claim(&request).await);
    let lease = reply.deadline.unwrap().since(before).as_secs();
    assert!((59..=62).contains(&lease), "{lease}");
    assert_eq!(reply.owner_addr, Some(node.address().authority()));
    assert_eq!(node.warm(&python()), 3);

    let rows = at(&client, node).sandboxes().await.unwrap();
    assert_eq!(
        (rows.len(), &rows[0].id, rows[0].claim_ref.as_str()),
        (1, &reply.id, "default/a")
    );
    assert_eq!(
        (&rows[0].key, rows[0].metadata["team"].as_str()),
        (&python(), "x")
    );
    assert_eq!(
        (rows[0].deadline, rows[0].hibernated),
        (reply.deadline, false)
    );
    let sandbox = at(&client, node).sandbox(&reply.id).await.unwrap();
    assert_eq!(
        (&sandbox.row, sandbox.token.as_ref()),
        (&rows[0], Some(&reply.token))
    );
    let stats = at(&client, node).stats(&reply.id).await.unwrap();
    assert_eq!(
        (
            stats.cpu_count,
            stats.mem_total_bytes,
            stats.mem_used_measured
        ),
        (1, 512 << 20, true)
    );

    at(&client, node).release(&reply.id).await.unwrap();
    let again = at(&client, node).release(&reply.id).await.unwrap_err();
    assert!(
        matches!(&again, Error::NotFound { text } if text == "unknown sandbox"),
        "{again:?}"
    );
    assert_eq!(at(&client, node).sandboxes().await.unwrap(), []);
    let counters = node.counters();
    assert_eq!(
        (counters.claims_warm, counters.claims(), counters.releases),
        (1, 1, 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_claims_at_once_are_made_once_each_also_when_answers_are_lost() {
    let fleet = start(Options {
        warm: 200,
        ..mk_options()
    })
    .await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let lost = Fault {
        times: Some(20),
        ..Fault::once(FaultKind::AnswerLost, "/v1/claim")
    };
    let cut = Fault {
        times: Some(20),
        ..Fault::once(FaultKind::Cut, "/v1/claim")
    };
    assert!(node.inject(lost).await && node.inject(cut).await);
    let claims: Vec<_> = (0..100)
        .map(|i| {
            let (client, node) = (client.clone(), node.clone());
            tokio::spawn(async move {
                at(&client, &node)
                    .claim(&named(&format!("default/c-{i}")))
                    .await
            })
        })
        .collect();
    let (mut ids, mut unknown) = (BTreeSet::new(), 0);
    for claim in claims {
        match claim.await.unwrap() {
            Ok(claimed) => assert!(ids.insert(granted(Ok(claimed)).id)),
            Err(error) => {
                assert!(error.outcome_unknown(), "{error:?}");
                unknown += 1;
            }
        }
    }
    assert_eq!((ids.len(), unknown), (60, 40));
    assert_eq!((node.claimed(), node.log().len()), (100, 100));
    for i in 0..100 {
        let claim_ref = format!("default/c-{i}");
        let rows = at(&client, node).sandboxes_of(&claim_ref).await.unwrap();
        assert_eq!(
            (rows.len(), node.claims_of(&claim_ref).len()),
            (1, 1),
            "{claim_ref}"
        );
    }
}

/// Claims under a fault: what the client makes of it, and whether a sandbox came to be.
async fn under(fault: FaultKind, expected: fn(&Error) -> bool, claims: usize) {
    let fleet = start(mk_options()).await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let name = format!("{fault:?}");
    assert!(node.inject(Fault::always(fault)).await);
    let error = client
        .node(node.address(), BRIEF)
        .claim(&named("default/a"))
        .await
        .unwrap_err();
    assert!(expected(&error), "{name}: {error:?}");
    assert_eq!(node.claimed(), claims, "{name}");
    assert!(claims == 0 || error.outcome_unknown(), "{name}: {error:?}");
    node.clear_faults().await;
    // The node is well again, whatever became of the connection.
    granted(at(&client, node).claim(&named("default/b")).await);
}

#[tokio::test]
async fn each_fault_is_told_from_the_others() {
    under(
        FaultKind::Late { millis: 60_000 },
        |e| matches!(e, Error::Silent { .. }),
        0,
    )
    .await;
    under(FaultKind::Hang, |e| matches!(e, Error::Silent { .. }), 0).await;
    under(
        FaultKind::Refuse,
        |e| matches!(e, Error::Unreachable(_)) && e.nothing_happened(),
        0,
    )
    .await;
    under(FaultKind::Reset, |e| matches!(e, Error::Interrupted(_)), 0).await;
    under(
        FaultKind::AnswerLost,
        |e| matches!(e, Error::Interrupted(_)),
        1,
    )
    .await;
    under(FaultKind::Cut, |e| matches!(e, Error::Interrupted(_)), 1).await;
    under(
        FaultKind::WrongJson,
        |e| matches!(e, Error::Malformed { .. }),
        0,
    )
    .await;
    under(
        FaultKind::WrongTypes,
        |e| matches!(e, Error::Malformed { .. }),
        0,
    )
    .await;
    under(
        FaultKind::Oversized { bytes: 2 << 20 },
        |e| matches!(e, Error::TooLarge { .. }),
        0,
    )
    .await;
    under(
        FaultKind::Unauthorized,
        |e| matches!(e, Error::Unauthorized { .. }) && e.nothing_happened(),
        0,
    )
    .await;
    let status = |status| FaultKind::Status {
        status,
        text: "why".to_owned(),
    };
    under(
        status(429),
        |e| matches!(e, Error::AtCapacity { text } if text == "why"),
        0,
    )
    .await;
    under(
        status(500),
        |e| {
            matches!(
                e,
                Error::ServerError {
                    by_daemon: true,
                    ..
                }
            )
        },
        0,
    )
    .await;
    let location = "http://127.0.0.1:1/v1/claim".to_owned();
    under(
        FaultKind::HttpRedirect { location },
        |e| matches!(e, Error::Redirected { .. }),
        0,
    )
    .await;
}

#[tokio::test]
async fn a_caller_that_hangs_up_early_leaves_no_claim() {
    let fleet = start(mk_options()).await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    assert!(
        node.inject(Fault::always(FaultKind::Late { millis: 100 }))
            .await
    );
    let early = client
        .node(node.address(), Duration::from_millis(20))
        .claim(&named("default/a"))
        .await;
    assert!(early.unwrap_err().outcome_unknown());
    tokio::time::timeout(SOON, async {
        while node.log()[0].outcome != "hung up" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(node.claimed(), 0);
}

#[tokio::test]
async fn a_node_without_a_warm_vm_names_a_peer_that_has_one() {
    let fleet = start(Options {
        nodes: 2,
        warm: 0,
        ..mk_options()
    })
    .await;
    let (client, [empty, warm]) = (mk_client("sim"), fleet.nodes()) else {
        panic!("two nodes were asked for");
    };
    warm.set_pool(&python(), 1, 1);
    fleet.gossip();
    let redirect = at(&client, empty).claim(&named("default/a")).await.unwrap();
    let Claimed::Redirect {
        addresses,
        require_promoted: false,
    } = redirect
    else {
        panic!("{redirect:?}");
    };
    assert_eq!(addresses, [warm.address().clone()]);
    let mut request = named("default/a");
    request.no_redirect = true;
    granted(at(&client, empty).claim(&request).await);
    let counters = empty.counters();
    assert_eq!((counters.redirects, counters.claims_clone), (1, 1));
}

#[tokio::test]
async fn a_promoted_template_is_found_at_its_node_and_required_there() {
    let fleet = start(Options {
        nodes: 2,
        ..mk_options()
    })
    .await;
    let (client, [other, owner]) = (mk_client("sim"), fleet.nodes()) else {
        panic!("two nodes were asked for");
    };
    let source = granted(at(&client, owner).claim(&named("default/a")).await);
    let promoted = at(&client, owner)
        .promote(&source.id, "mine")
        .await
        .unwrap();
    assert_eq!(promoted.key, key("mine"));
    fleet.gossip();
    let mut request = ClaimRequest::new(key("mine"));
    let redirect = at(&client, other).claim(&request).await.unwrap();
    assert!(
        matches!(&redirect, Claimed::Redirect { addresses, require_promoted: true } if addresses == &[owner.address().clone()]),
        "{redirect:?}"
    );
    request.require_promoted = true;
    let clone = granted(at(&client, owner).claim(&request).await);
    assert_eq!(clone.template_digest, Some(promoted.content_digest));
    let unknown = at(&client, other).claim(&request).await.unwrap_err();
    assert!(matches!(unknown, Error::NotFound { .. }), "{unknown:?}");
    assert_eq!(
        at(&client, owner).info().await.unwrap().templates[0].key,
        key("mine")
    );
}

#[tokio::test]
async fn an_image_that_does_not_exist_is_found_out_by_trying() {
    let fleet = start(mk_options()).await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let error = at(&client, node)
        .claim(&ClaimRequest::new(key("no:such")))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::ServerError { text, .. } if text == "provisioning failed"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_route_that_is_missing_is_not_a_sandbox_that_is_missing() {
    let unknown = ClaimId::from("sb_0000000000000000");
    for (generation, route_missing) in [(Generation::Early, true), (Generation::A, false)] {
        let fleet = start(Options {
            generation,
            ..mk_options()
        })
        .await;
        let client = mk_client("sim");
        let error = at(&client, &fleet.nodes()[0])
            .renew(&unknown, SOON)
            .await
            .unwrap_err();
        assert_eq!(
            matches!(error, Error::RouteMissing),
            route_missing,
            "{error:?}"
        );
        assert_eq!(
            matches!(error, Error::NotFound { .. }),
            !route_missing,
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_token_file_that_changes_is_read_again() {
    let fleet = start(mk_options()).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "other").unwrap();
    let client = Client::new(ClientOptions {
        token: TokenSource::File(path.clone()),
        ca_file: None,
    })
    .unwrap();
    let node = &fleet.nodes()[0];
    let refused = at(&client, node).info().await.unwrap_err();
    assert!(
        matches!(&refused, Error::Unauthorized { text } if text == "invalid api token"),
        "{refused:?}"
    );
    std::fs::write(&path, "sim\n").unwrap();
    at(&client, node).info().await.unwrap();
}

#[tokio::test]
async fn a_list_may_be_long() {
    let fleet = start(Options {
        sandboxes: 10_000,
        namespaces: vec!["default".to_owned(), "team".to_owned()],
        ..mk_options()
    })
    .await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let rows = at(&client, node).sandboxes().await.unwrap();
    assert_eq!(rows.len(), 10_000);
    assert!(rows.is_sorted_by_key(|row| row.id.as_str()));
    let names: BTreeSet<_> = rows.iter().map(|row| row.claim_ref.as_str()).collect();
    assert!(names.contains("default/sb-000000") && names.contains("team/sb-009999"));
    let one = at(&client, node)
        .sandboxes_of("team/sb-009999")
        .await
        .unwrap();
    assert_eq!(one.len(), 1);
    // More than an ordinary answer may have, so only its content is wrong.
    assert!(
        node.inject(Fault::always(FaultKind::Oversized { bytes: 3 << 20 }))
            .await
    );
    let blank = at(&client, node).sandboxes().await.unwrap_err();
    assert!(matches!(blank, Error::Malformed { .. }), "{blank:?}");
}

#[tokio::test]
async fn a_daemon_that_ignores_the_filter_does_not_mislead() {
    let fleet = start(mk_options()).await;
    let (node, client) = (&fleet.nodes()[0], mk_client("sim"));
    let planted = node.plant(Planted::new("", python()));
    // An empty reference filters nothing on the daemon: it sends every row.
    granted(at(&client, node).claim(&named("default/a")).await);
    let rows = at(&client, node).sandboxes_of("").await.unwrap();
    assert_eq!(
        rows.iter().map(|row| &row.id).collect::<Vec<_>>(),
        [&planted]
    );
}

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
async fn each_token_reaches_what_it_may() {
    let tenant = |name: &str, max_claims| Tenant {
        name: name.to_owned(),
        token: Token::from(format!("token-{name}")),
        max_claims,
    };
    let fleet = start(Options {
        tenants: vec![tenant("a", 1), tenant("b", 0)],
        ..mk_options()
    })
    .await;
    let node = &fleet.nodes()[0];
    let (root, a, b) = (mk_client("sim"), mk_client("token-a"), mk_client("token-b"));
    let mine = granted(at(&a, node).claim(&named("default/a")).await);
    let over = at(&a, node).claim(&named("default/a2")).await.unwrap_err();
    assert!(matches!(over, Error::AtCapacity { .. }), "{over:?}");
    assert_eq!(at(&root, node).sandboxes().await.unwrap().len(), 1);
    assert_eq!(at(&a, node).sandboxes().await.unwrap().len(), 1);
    assert_eq!(at(&b, node).sandboxes().await.unwrap().len(), 0);
    let operator = at(&a, node).info().await.unwrap_err();
    assert!(
        matches!(&operator, Error::Unauthorized { text } if text == "operator token required"),
        "{operator:?}"
    );
    // A tenant's token is no sandbox's: the same 404 as for an unknown id.
    assert!(matches!(
        at(&a, node).release(&mine.id).await.unwrap_err(),
        Error::NotFound { .. }
    ));
    let wrong = at(&mk_client("wrong"), node)
        .claim(&named("x"))
        .await
        .unwrap_err();
    assert!(
        matches!(&wrong, Error::Unauthorized { text } if text == "invalid api token"),
        "{wrong:?}"
    );
    // The sandbox's own token releases it.
    at(&mk_client(mine.token.expose()), node)
        .release(&mine.id)
        .await
        .unwrap();
    assert_eq!(node.claimed(), 0);
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

pub(super) async fn eventually(condition: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(SOON, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("the condition never held");
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
