//! Claims: what is granted, what is refused, and faults in between.

use super::*;

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
    // Not found, and not listed: that is what was asked for.
    at(&client, node).release(&reply.id).await.unwrap();
    assert!(at(&client, node).is_absent(&reply.id).await.unwrap());
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
        FaultKind::HttpRedirect {
            location,
            status: 308,
        },
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
