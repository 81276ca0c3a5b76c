//! From the first probe to the last answer.

use std::{sync::Arc, time::Duration};

use sandbox_apiserver::{
    api::{PoolKey, UserPart},
    meta::UnixTime,
    sim::{self, Fault, FaultKind, Planted},
};
use serde_json::{Value, json};

use crate::{
    harness::{
        ADMIN, ALICE, Cluster, Door, SANDBOXES, SOON, item, mk_node, mk_request, mk_sandbox, until,
    },
    tls_client,
    widgets::{WIDGETS, Workshop},
};

#[tokio::test]
async fn health_is_for_everybody_and_verbose_on_request() {
    let cluster = Cluster::of(0).await;
    // Nobody's HTTP/2 connection ends with its first answer.
    let ask = async |path: &str| cluster.door.client("").await.get(path).await;
    for path in ["/livez", "/readyz", "/healthz"] {
        let answer = ask(path).await;
        assert_eq!(
            (answer.code(), answer.text()),
            (200, "ok".to_owned()),
            "{path}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert!(answer.header("content-type").starts_with("text/plain"));
    }
    let verbose = ask("/readyz?verbose").await.text();
    assert!(verbose.contains("[+]inventory ok"), "{verbose}");
    assert_eq!(ask("/readyz/inventory").await.code(), 200);
    assert_eq!(ask("/readyz/nothing").await.code(), 404);
}

#[tokio::test]
async fn an_http2_connection_of_somebody_unknown_ends_with_its_answer() {
    let cluster = Cluster::of(0).await;
    let tls = || tls_client::config(cluster.door.ca.certificate(), None, &["h2"]);
    let ask = |token: &str, path: &str| {
        let body = tls_client::empty();
        mk_request(token, "GET", path, &[], body)
    };
    for (token, path, code, ends) in [
        ("", "/livez", 200, true),
        ("", SANDBOXES, 200, true),
        ("wrong", SANDBOXES, 401, true),
        (ALICE, "/livez", 200, false),
        (ALICE, SANDBOXES, 200, false),
        (ALICE, "/nowhere", 404, false),
    ] {
        let stream = tls_client::connect(cluster.door.address, tls()).await;
        let mut client = tls_client::http2(stream.unwrap()).await;
        let answer = client.send_request(ask(token, path)).await.unwrap();
        assert_eq!(answer.status(), code, "{token} {path}");
        let patience = if ends {
            SOON
        } else {
            Duration::from_millis(300)
        };
        let again = async {
            while client.ready().await.is_ok()
                && client.send_request(ask(token, path)).await.is_ok()
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(patience, again).await;
        assert_eq!(ended.is_ok(), ends, "{token} {path}");
    }
}

#[tokio::test]
async fn a_failing_check_is_named_and_may_be_left_out() {
    let workshop = Workshop::open().await;
    let check = workshop.door.readiness.check("nodes");
    check.fail("the reason");
    let failing = workshop.client.get("/readyz").await;
    assert_eq!(failing.code(), 500);
    assert!(
        failing.text().contains("[-]nodes failed"),
        "{}",
        failing.text()
    );
    assert!(!failing.text().contains("the reason"), "withheld");
    assert_eq!(
        workshop.client.get("/readyz?exclude=nodes").await.code(),
        200
    );
    assert_eq!(workshop.client.get("/readyz/nodes").await.code(), 500);
    assert_eq!(workshop.client.get("/livez").await.code(), 200);
    let refused = workshop.client.get(WIDGETS).await;
    let status = refused.refusal(503, "ServiceUnavailable");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    check.pass();
    assert_eq!(workshop.client.get(WIDGETS).await.code(), 200);
}

#[tokio::test]
async fn before_the_server_is_there_everything_is_unavailable_but_probes() {
    let door = Door::open().await;
    let client = door.client(ADMIN).await;
    assert_eq!(client.get("/livez").await.code(), 200);
    for path in [SANDBOXES, "/nowhere", "/version", "/metrics"] {
        let status = client.get(path).await.refusal(503, "ServiceUnavailable");
        assert_eq!(status["details"]["retryAfterSeconds"], 5, "{path}");
    }
    assert_eq!(client.get("/livez").await.header("audit-id").len(), 36);
}

#[tokio::test]
async fn a_server_is_found_available_when_all_its_documents_are_there() {
    let workshop = Workshop::open().await;
    let check = workshop.door.readiness.check("nodes");
    check.fail("not known yet");
    let documents = [
        "/apis",
        "/apis/example.com",
        "/apis/example.com/v1",
        "/openapi/v3",
    ];
    for path in documents {
        workshop
            .client
            .get(path)
            .await
            .refusal(503, "ServiceUnavailable");
    }
    assert_eq!(workshop.client.get("/version").await.code(), 200);
    check.pass();
    for path in documents {
        assert_eq!(workshop.client.get(path).await.code(), 200, "{path}");
    }
}

#[tokio::test]
async fn documents_that_were_served_once_stay_whatever_fails() {
    let workshop = Workshop::open().await;
    assert_eq!(workshop.client.get("/apis").await.code(), 200);
    let check = workshop.door.readiness.check("nodes");
    check.fail("gone");
    for path in ["/apis", "/apis/example.com/v1", "/openapi/v3"] {
        assert_eq!(workshop.client.get(path).await.code(), 200, "{path}");
    }
}

#[tokio::test]
async fn the_end_is_announced_then_comes() {
    let cluster = Cluster::of(1).await;
    let mut watch = cluster
        .client
        .watch(format!("{SANDBOXES}?watch=true"))
        .await;
    assert_eq!(watch.next().await, "ADDED sb-000000");

    // First new clients are kept away, while those that are here are served.
    cluster.door.readiness.shutting_down();
    assert_eq!(cluster.client.get("/readyz").await.code(), 500);
    assert_eq!(cluster.client.get("/livez").await.code(), 200);
    assert_eq!(cluster.client.get(SANDBOXES).await.code(), 200);
    cluster.create("a").await;
    assert_eq!(watch.next().await, "ADDED a");

    // Then nothing new is begun.
    cluster.door.closing.cancel();
    assert_eq!(watch.line().await, None);
    let client = cluster.door.client(ADMIN).await;
    for refused in [
        client.get(SANDBOXES).await,
        cluster
            .door
            .client(ADMIN)
            .await
            .post(SANDBOXES, &mk_sandbox("b"))
            .await,
    ] {
        let status = refused.refusal(429, "TooManyRequests");
        assert_eq!(status["details"]["retryAfterSeconds"], 5);
    }
    let probe = cluster.door.client(ADMIN).await;
    assert_eq!(probe.get("/livez").await.code(), 200);
    assert_eq!(
        cluster
            .door
            .client(ADMIN)
            .await
            .get("/metrics")
            .await
            .code(),
        200
    );
}

#[tokio::test]
async fn a_server_that_may_not_write_any_more_leaves_everything_as_it_is() {
    let cluster = Cluster::start(mk_node(2)).await;
    cluster.create("a").await;
    let (before, writes) = (
        cluster.client.get(item("a")).await.json(),
        cluster.writes_at_nodes(),
    );
    cluster.daemons.fence(|| false);
    let pause = format!("{}/pause", item("a"));
    for refused in [
        cluster.client.delete(item("a"), Value::Null).await,
        cluster.client.post(SANDBOXES, &mk_sandbox("b")).await,
        cluster.client.post(pause, &json!({})).await,
    ] {
        let status = refused.refusal(503, "ServiceUnavailable");
        let cause = &status["details"]["causes"][0]["reason"];
        assert_eq!(cause, "ServerEnding", "{status}");
    }
    assert_eq!(cluster.client.get(item("a")).await.json(), before);
    assert_eq!(cluster.client.get(item("b")).await.code(), 404);
    assert_eq!(cluster.writes_at_nodes(), writes);
}

#[tokio::test]
async fn metrics_count_what_is_asked_in_names_that_are_served() {
    let cluster = Cluster::of(1).await;
    cluster.client.get(SANDBOXES).await;
    cluster.client.get(item("x")).await;
    cluster
        .client
        .get("/apis/invented.io/v1/namespaces/a/inventions")
        .await;
    let answer = cluster.client.get("/metrics").await;
    assert_eq!(answer.code(), 200);
    let text = answer.text();
    let requests = text
        .lines()
        .filter(|line| line.starts_with("sandbox_apiserver_apiserver_requests_total{"));
    let requests: Vec<_> = requests.collect();
    let has = |parts: &[&str]| {
        requests
            .iter()
            .any(|line| parts.iter().all(|part| line.contains(part)))
    };
    assert!(
        has(&["verb=\"list\"", "resource=\"sandboxes\"", "code=\"200\""]),
        "{requests:#?}"
    );
    assert!(has(&[
        "verb=\"get\"",
        "resource=\"sandboxes\"",
        "code=\"404\""
    ]));
    assert!(!text.contains("invention"));
}

#[tokio::test]
async fn a_restart_shows_the_same_objects_with_newer_versions() {
    let cluster = Cluster::of(2).await;
    let before = cluster.client.get(SANDBOXES).await.json();
    let uid = |list: &Value| list["items"][0]["metadata"]["uid"].clone();
    cluster.publish().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after = cluster.client.get(SANDBOXES).await.json();
    assert_eq!(uid(&after), uid(&before));
    assert_eq!(after, before, "a publication of the same is no change");
    assert_ne!(before["items"], json!([]));
}

#[tokio::test]
async fn a_lease_is_renewed_whoever_brought_its_shutdown_time() {
    let cluster = Cluster::start(mk_node(4)).await;
    let node = &cluster.nodes.nodes()[0];
    let pool = PoolKey {
        template: "python:3.12".into(),
        net: "none".into(),
        size: "small".into(),
    };
    // As after a restart of this server: the node lists what an earlier life made, and its agent knows what the user said.
    let claim = node.plant(Planted {
        ttl_seconds: 120,
        ..Planted::new("default/a", pool)
    });
    cluster.publish().await;
    let record = || cluster.fleet.by_claim(node.name(), &claim);
    until("the sandbox is listed", || record().is_some()).await;
    let day = Duration::from_secs(86_400);
    let user = UserPart {
        shutdown_time: Some(UnixTime::now().after(7 * day)),
        generation: 1,
        spec: "{}".into(),
        ..UserPart::default()
    };
    cluster
        .fleet
        .restore_user(node.name(), &claim, &Arc::new(user));
    let soon = UnixTime::now().after(day / 2);
    until("the lease is renewed", || {
        record().is_some_and(|record| record.value.deadline.is_some_and(|ends| ends > soon))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let renewals = "sandbox_apiserver_gateway_lease_renewals_total";
    assert_eq!(cluster.door.counted(renewals), 1.0, "and then left alone");
}

#[tokio::test]
async fn a_lease_that_no_node_grants_is_told_or_refused() {
    let cluster = Cluster::start(mk_node(4)).await;
    let key = "sandbox.cocoonstack.io/ttl-seconds";
    let create = async |name: &str, seconds: &str| {
        let mut sandbox = mk_sandbox(name);
        sandbox["metadata"]["annotations"] = json!({key: seconds});
        cluster.client.post(SANDBOXES, &sandbox).await
    };
    for (name, seconds, cut) in [("a", "86400", false), ("b", "100000", true)] {
        let created = create(name, seconds).await;
        assert_eq!(created.code(), 201, "{}", created.text());
        let deadline =
            &created.json()["metadata"]["annotations"]["sandbox.cocoonstack.io/deadline"];
        let warnings = created.headers("warning").join("\n");
        assert_eq!(warnings.contains(key), cut, "{warnings}");
        assert_eq!(warnings.contains(deadline.as_str().unwrap()), cut);
    }
    let writes = cluster.writes_at_nodes();
    for seconds in ["0", "2147483648", "9223372036854775808", "x"] {
        let refused = create("c", seconds).await;
        let status = refused.refusal(422, "Invalid");
        let cause = &status["details"]["causes"][0];
        assert_eq!(cause["field"], format!("metadata.annotations[{key}]"));
    }
    assert_eq!(cluster.writes_at_nodes(), writes);
}

#[tokio::test]
async fn a_create_is_not_refused_because_of_its_own_double() {
    let options = sim::Options {
        nodes: 2,
        ..mk_node(40)
    };
    let cluster = Cluster::start(options).await;
    let [silent, slow] = cluster.nodes.nodes() else {
        panic!("two nodes")
    };
    let lost = Fault::once(FaultKind::AnswerLost, "/v1/claim");
    let mute = FaultKind::Status {
        status: 500,
        text: String::new(),
    };
    let mute = Fault {
        path: "/v1/sandboxes".to_owned(),
        ..Fault::always(mute)
    };
    let late = Fault::always(FaultKind::Late { millis: 500 });
    let late = Fault {
        path: "/v1/claim".to_owned(),
        ..late
    };
    assert!(silent.inject(lost).await && silent.inject(mute).await && slow.inject(late).await);
    // Which of them is asked first is a draw.
    for n in 0..20 {
        let name = format!("a{n}");
        let create = async {
            let created = cluster.create(&name).await;
            created["status"]["nodeName"].as_str().unwrap().to_owned()
        };
        let publish = async {
            // The double is listed before the other node has answered.
            tokio::time::sleep(Duration::from_millis(250)).await;
            cluster.publish().await;
        };
        let (node, ()) = futures::join!(create, publish);
        if silent.claimed() > 0 {
            assert_eq!(node, slow.name().as_str());
            silent.clear_faults().await;
            until("the double is released", || {
                silent.claimed() == 0 && cluster.fleet.counts().name_conflicts == 0
            })
            .await;
            let object = cluster.client.get(item(&name)).await.json();
            assert_eq!(object["status"]["nodeName"], slow.name().as_str());
            return;
        }
    }
    panic!("the silent node was never asked");
}

#[tokio::test]
async fn what_a_node_granted_unheard_is_asked_for_once_more_at_the_end() {
    let cluster = Cluster::start(mk_node(4)).await;
    let node = &cluster.nodes.nodes()[0];
    let lost = Fault::once(FaultKind::AnswerLost, "/v1/claim");
    let mute = Fault {
        path: "/v1/sandboxes".to_owned(),
        ..Fault::always(FaultKind::WrongJson)
    };
    assert!(node.inject(lost).await && node.inject(mute).await);
    let refused = cluster.client.post(SANDBOXES, &mk_sandbox("a")).await;
    assert_eq!(refused.code(), 500, "{}", refused.text());
    // By now it is asked every few seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(node.claimed(), 1);
    node.clear_faults().await;
    cluster.door.closing.cancel();
    until("it is released", || node.claimed() == 0).await;
}

#[tokio::test]
async fn a_node_that_denies_a_claim_and_grants_it_later_is_asked_again() {
    let cluster = Cluster::start(mk_node(4)).await;
    let node = &cluster.nodes.nodes()[0];
    // It is asked 100 ms and 500 ms after the answer was lost, and then at 1.5 s.
    let overtime = Fault::once(FaultKind::Overtime { millis: 800 }, "/v1/claim");
    assert!(node.inject(overtime).await);
    let refused = cluster.client.post(SANDBOXES, &mk_sandbox("a")).await;
    assert_eq!(refused.code(), 500, "{}", refused.text());
    let n_asked = |what: &str| {
        let log = node.log();
        log.iter().filter(|it| it.path.contains(what)).count()
    };
    until("it was asked", || n_asked("claim_ref=") > 0).await;
    assert_eq!(node.claimed(), 0, "it denies the claim");
    until("what it granted is released", || n_asked("/release") > 0).await;
    until("nothing is left", || node.claimed() == 0).await;
}
