//! Calls of the client that are about no single sandbox, and what each credential reaches.

use super::*;

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
    // A tenant's token is no sandbox's: the same 404 as for an unknown id. And whether it is unknown a tenant is not told.
    let released = at(&a, node).release(&mine.id).await.unwrap_err();
    assert!(
        matches!(&released, Error::Unauthorized { text } if text == "operator token required"),
        "{released:?}"
    );
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
