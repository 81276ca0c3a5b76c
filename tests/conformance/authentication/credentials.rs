//! Credentials: which ones count, for how long, and where they end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sandbox_apiserver::serving::CertificateAuthority;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{SOON, listening_node::ListeningNode, refused_user, user_of};
use crate::{
    auth::certificate_of,
    conformance::{
        credentials::{Door, certificate, service_account},
        grants::Grant,
        relay::{Reply, failure},
        subject::Subject,
        witness::Witness,
    },
    stage::{NODE_TOKEN, eventually},
    tls_client,
};

/// How long an answer of kube-apiserver counts, and a time after which it certainly still does.
const KEPT: Duration = Duration::from_secs(10);
const STILL_KEPT: Duration = Duration::from_secs(5);

pub(super) async fn c_025(subject: &Subject) {
    let (robot, token) = service_account(subject, "robot").await;
    let mut witness = Witness::start(subject).await;
    let bearer = format!("Bearer {token}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("x-remote-user", "spoofed-user"),
    ];
    let spoofed = [
        ("x-remote-extra-a", "spoofed-extra"),
        ("x-remote-group", "spoofed-group"),
    ];
    let headers: Vec<_> = headers.into_iter().chain(spoofed).collect();
    assert_eq!(witness.name(&witness.door.nobody(), &headers).await, robot);
    let proxy = witness.door.with_certificate(&witness.proxy());
    let proxied = [("x-remote-user", "ann"), ("authorization", bearer.as_str())];
    assert_eq!(witness.name(&proxy, &proxied).await, "ann");
    // One that goes as far as a node, which answers nothing but keeps what it is asked.
    let node = ListeningNode::start(subject).await;
    witness
        .relay
        .rule(|question| match question.is_about_user("ann") {
            true => question.with_status(&json!({"allowed": true})),
            false => Reply::Passed,
        });
    let item = subject.item(ListeningNode::SANDBOX);
    let vouched = [
        ("x-remote-group", "vouched-group"),
        ("x-remote-extra-a", "vouched-extra"),
    ];
    let proxied = [&proxied[..], &vouched].concat();
    eventually(SOON, "the node's sandbox is known", async || {
        proxy.send("GET", &item, &proxied, "").await.status == 200
    })
    .await;
    let path = format!("{item}/stats");
    let stats = proxy.send("GET", &path, &proxied, "").await;
    assert!(stats.status.is_server_error(), "{:#}", stats.body);
    let asked = node.asked();
    let of_stats = |head: &&String| head.contains(&format!("{}/stats", ListeningNode::CLAIM));
    let stats = asked.iter().find(of_stats).expect("the node was asked");
    assert!(stats.contains(&format!("Bearer {NODE_TOKEN}")), "{stats}");
    for head in &asked {
        for secret in [token.as_str(), "vouched-", "x-remote-"] {
            assert!(!head.contains(secret), "{secret}: {head}");
        }
    }
    node.forget(subject).await;

    for question in witness.relay.asked() {
        let headers = format!("{:?}", question.headers);
        let text = format!("{} {headers} {}", question.path, question.body);
        for secret in [token.as_str(), "spoofed-", "x-remote-"] {
            let is_review = secret == token && question.is_about_token(&token);
            assert!(is_review || !text.contains(secret), "{secret}: {text}");
        }
    }
    let log = witness.server.running().process.log();
    assert!(log.contains(&robot), "the log names the user: {log}");
    for secret in [token.as_str(), "spoofed-"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

pub(super) async fn c_028(subject: &Subject) {
    let (robot, token) = service_account(subject, "robot").await;
    let (other, later) = service_account(subject, "other").await;
    let witness = Witness::start(subject).await;
    let recovered = Arc::new(AtomicBool::new(false));
    let (has_recovered, failing) = (recovered.clone(), later.clone());
    let user = json!({"username": "dora", "uid": "7", "groups": ["dev"], "extra": {"k": ["v"]}});
    let found = json!({"authenticated": true, "user": user});
    witness.relay.rule(move |question| match question {
        it if it.is_about_token("silence") => Reply::Silence,
        it if it.is_about_token("dora") => it.with_status(&found),
        it if it.is_about_token(&failing) && !has_recovered.load(Ordering::SeqCst) => failure(500),
        _ => Reply::Passed,
    });
    let n = |token: &str| witness.relay.n_token_reviews(token);
    let of = |token: &str| witness.door.with_token(token);

    let who = witness.who(&of("dora"), &[]).await.unwrap();
    let expected = json!({"user": "dora", "uid": "7", "extra": {"k": ["v"]}, "groups": ["dev", "system:authenticated"]});
    for field in ["user", "uid", "groups", "extra"] {
        assert_eq!(who[field], expected[field], "{field}");
    }
    let asked = witness.relay.asked().into_iter();
    let review = asked.rev().find(|it| it.is_token_review()).unwrap();
    assert_eq!(review.body["apiVersion"], "authentication.k8s.io/v1");

    let kept = async {
        let asked = Instant::now();
        for after in [Duration::ZERO, Duration::ZERO, STILL_KEPT] {
            sleep(after.saturating_sub(asked.elapsed())).await;
            assert_eq!(witness.name(&of(&token), &[]).await, robot);
            assert_eq!(witness.who(&of("rejected"), &[]).await, None);
        }
        assert!(asked.elapsed() < KEPT, "too slow to tell");
        assert_eq!((n(&token), n("rejected")), (1, 1));
        sleep(KEPT).await;
        assert_eq!(witness.name(&of(&token), &[]).await, robot);
        assert_eq!(witness.who(&of("rejected"), &[]).await, None);
        assert_eq!((n(&token), n("rejected")), (2, 2));
    };
    let failures = async {
        let asked = Instant::now();
        assert_eq!(witness.who(&of(&later), &[]).await, None);
        assert_eq!(n(&later), 5, "tries");
        // 500 ms, and half as much again each time.
        assert!(asked.elapsed() > Duration::from_millis(4_000));
        recovered.store(true, Ordering::SeqCst);
        assert_eq!(witness.name(&of(&later), &[]).await, other);
    };
    let silence = async {
        let asked = Instant::now();
        assert_eq!(witness.who(&of("silence"), &[]).await, None);
        let took = asked.elapsed();
        assert!(
            took > Duration::from_secs(9) && took < Duration::from_secs(15),
            "{took:?}"
        );
    };
    tokio::join!(kept, failures, silence);
}

pub(super) async fn c_029(subject: &Subject) {
    let door = Door::of(subject);
    assert_eq!(user_of(&door.nobody(), &[]).await, "system:anonymous");
    // Whoever is in the group of those that are not known may do what that group may.
    let grant = Grant {
        kind: "Group",
        ..Grant::to("system:unauthenticated", &["list"])
    };
    grant.in_force(subject).await;
    let path = subject.collection();
    assert_eq!(door.nobody().get(&path).await.ok()["kind"], "SandboxList");
    let stranger = CertificateAuthority::new("stranger").unwrap();
    let stranger = door.with_certificate(&certificate(&stranger, "eve", None));
    for bad in [
        &door.with_token("not-a-token"),
        &door.with_token(""),
        &stranger,
    ] {
        bad.get(&path).await.expect(401, "Unauthorized");
    }
    let mut closed = subject.server(&["--anonymous-auth=false"]);
    closed.ready().await;
    let nobody = Door::of_server(&closed).nobody();
    nobody.get(&path).await.expect(401, "Unauthorized");
}

pub(super) async fn c_030(subject: &Subject) {
    let answer = Door::of(subject)
        .with_token("not-a-token")
        .get(&subject.collection())
        .await;
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
    });
    assert_eq!((answer.status.as_u16(), &answer.body), (401, &status));

    let connect = async |user: Option<&str>| {
        let pair = user.map(|user| certificate_of(subject.control_plane, user));
        let tls = tls_client::config(&subject.ca(), pair.as_ref(), &["h2"]);
        let stream = tls_client::connect(subject.address(), tls).await.unwrap();
        tls_client::http2(stream).await
    };
    let path = subject.collection();
    let mut known = connect(Some("jane")).await;
    for _ in 0..2 {
        let answer = known.send_request(tls_client::get(&path)).await.unwrap();
        assert_eq!(answer.status(), 403);
    }
    for (token, code) in [(Some("Bearer not-a-token"), 401), (None, 403)] {
        let mut stranger = connect(None).await;
        let mut request = tls_client::get(&path);
        let headers = request.headers_mut();
        headers.extend(token.map(|token| (http::header::AUTHORIZATION, token.parse().unwrap())));
        let answer = stranger.send_request(request).await.unwrap();
        assert_eq!(answer.status(), code);
        let ends = timeout(SOON, async {
            while stranger.send_request(tls_client::get(&path)).await.is_ok() {}
        });
        ends.await.expect("the connection ends");
    }
    let answer = known.send_request(tls_client::get(&path)).await;
    assert_eq!(answer.unwrap().status(), 403);
}

pub(super) async fn c_031(subject: &Subject) {
    let (robot, token) = service_account(subject, "robot").await;
    let witness = Witness::start(subject).await;
    let door = &witness.door;
    let stranger = CertificateAuthority::new("stranger").unwrap();
    let proxy = door.with_certificate(&witness.proxy());
    let jane = witness.user("jane");
    let stranger = door.with_certificate(&certificate(&stranger, "eve", None));
    let other = certificate(&witness.proxy_ca, "another-proxy", None);
    let other = door.with_certificate(&other);
    let bearer = format!("Bearer {token}");
    let (good, bad) = (
        ("authorization", bearer.as_str()),
        ("authorization", "Bearer bad"),
    );
    let ann = ("x-remote-user", "ann");
    for (what, client, headers, name) in [
        ("headers, then token", &proxy, &[ann, good][..], "ann"),
        ("headers, and a bad token", &proxy, &[ann, bad], "ann"),
        ("certificate, then token", &jane, &[ann, good], "jane"),
        ("certificate, and a bad token", &jane, &[bad], "jane"),
        (
            "a proxy without headers, then token",
            &proxy,
            &[good],
            &robot,
        ),
        (
            "a proxy that is not allowed, then token",
            &other,
            &[ann, good],
            &robot,
        ),
        (
            "an unknown certificate, then token",
            &stranger,
            &[good],
            &robot,
        ),
        (
            "an unknown certificate and a bad token",
            &stranger,
            &[bad],
            "",
        ),
    ] {
        assert_eq!(witness.name(client, headers).await, name, "{what}");
    }
}

/// What a review about impersonation asks for: group, resource, namespace and name.
fn item(spec: &Value) -> String {
    let attributes = &spec["resourceAttributes"];
    let part = |name: &str| attributes[name].as_str().unwrap_or_default().to_owned();
    let mut resource = part("resource");
    if !part("subresource").is_empty() {
        resource = format!("{resource}/{}", part("subresource"));
    }
    format!(
        "{}/{resource}/{}/{}",
        part("group"),
        part("namespace"),
        part("name")
    )
}

pub(super) async fn c_032(subject: &Subject) {
    let as_ruth = [("impersonate-user", "ruth")];
    let proxied = subject.proxied();
    let refused = proxied
        .send("GET", &subject.collection(), &as_ruth, "")
        .await;
    assert_eq!(refused_user(&refused), "ruth", "resolved by kube-apiserver");

    let witness = Witness::start(subject).await;
    let wanted = |spec: &Value| spec["resourceAttributes"]["verb"] == "impersonate";
    witness.relay.rule(move |question| {
        let spec = &question.body["spec"];
        let attributes = &spec["resourceAttributes"];
        match wanted(spec) && attributes["name"] != "forbidden" {
            true => question.with_status(&json!({"allowed": true})),
            false => Reply::Passed,
        }
    });
    let clara = witness.user("clara");
    let headers = [
        ("impersonate-user", "ruth"),
        ("impersonate-group", "dev"),
        ("impersonate-group", "ops"),
        ("impersonate-uid", "7"),
        ("impersonate-extra-Example.org%2fScope", "all"),
    ];
    let who = witness.who(&clara, &headers).await.unwrap();
    assert_eq!((&who["user"], &who["uid"]), (&json!("ruth"), &json!("7")));
    assert_eq!(who["groups"], json!(["dev", "ops", "system:authenticated"]));
    assert_eq!(who["extra"], json!({"example.org/scope": ["all"]}));
    let items: Vec<String> = witness
        .relay
        .reviews_of("clara")
        .iter()
        .filter(|spec| wanted(spec))
        .map(item)
        .collect();
    for expected in [
        "/users//ruth",
        "/groups//dev",
        "/groups//ops",
        "authentication.k8s.io/uids//7",
        "authentication.k8s.io/userextras/example.org/scope//all",
    ] {
        let n = items.iter().filter(|item| *item == expected).count();
        assert_eq!(n, 1, "{expected} in {items:?}");
    }
    let robot = [("impersonate-user", "system:serviceaccount:here:robot")];
    let who = witness.who(&clara, &robot).await.unwrap();
    assert_eq!(who["user"], "system:serviceaccount:here:robot");
    let reviews = witness.relay.reviews_of("clara");
    assert!(
        reviews
            .iter()
            .any(|spec| item(spec) == "/serviceaccounts/here/robot")
    );

    for header in [
        "impersonate-group",
        "impersonate-uid",
        "impersonate-extra-a",
    ] {
        let one = (header, "forbidden");
        let refused = clara.send("GET", "/version", &[as_ruth[0], one], "").await;
        assert_eq!(refused_user(&refused), "clara", "{header}");
        let alone = clara.send("GET", "/version", &[one], "").await;
        alone.expect(400, "BadRequest");
    }
    let forbidden = [("impersonate-user", "forbidden")];
    let refused = clara.send("GET", "/version", &forbidden, "").await;
    assert_eq!(refused_user(&refused), "clara");
}
