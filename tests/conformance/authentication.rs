//! Who the caller is.

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

use super::{
    client::Client,
    credentials::{Door, certificate, expired, service_account},
    grants::Grant,
    relay::{Relay, Reply, failure},
    subject::Subject,
    witness::Witness,
};
use crate::{auth::certificate_of, stage::eventually, tls_client};

items! {
    c_020 P0 "Whom to trust is read from one ConfigMap, by that name alone, and followed; who cannot read it does not start.", ours;
    c_021 P0 "A certificate of the front proxy's CA with an allowed name, and a user in the headers, are an identity.", ours;
    c_022 P0 "A certificate of the front proxy's CA with another name is a bad credential.", ours;
    c_023 P0 "Identity headers of anybody but the front proxy are ignored.", ours;
    c_024 P0 "Groups, extras and the UID come from the headers that the ConfigMap names, all values of them.", ours;
    c_025 P0 "Credentials and identity headers reach neither the log nor any other server.", ours;
    c_026 P0 "Every known user is in `system:authenticated`, also when the proxy names no group.", ours;
    c_027 P0 "A client certificate names a user by its common name and groups by its organizations.", ours;
    c_028 P0 "Tokens are reviewed by kube-apiserver; answers count for 10 s, and failures to ask are never kept.", ours;
    c_029 P0 "Who shows no credential is anonymous, and who shows a bad one is nobody.", ours;
    c_030 P0 "Nobody is told nothing but Unauthorized; over HTTP/2 the connection of a stranger ends with the answer.", ours;
    c_031 P1 "The proxy's headers come before the certificate and that before the token, and a bad one does not hide the next.", ours;
    c_032 P1 "Impersonation needs a right for each thing that the caller wants to be.", ours;
    c_033 P2 "A WebSocket client may carry its token as a subprotocol, which is never echoed.", left "not built yet";
}

const SOON: Duration = Duration::from_secs(15);
/// How long an answer of kube-apiserver counts.
const KEPT: Duration = Duration::from_secs(10);
/// What nobody but the front proxy may say.
const SPOOFED: [(&str, &str); 3] = [
    ("x-remote-user", "root"),
    ("x-remote-group", "system:masters"),
    ("x-remote-extra-scopes", "all"),
];

/// The user that a refusal names.
#[track_caller]
fn refused_user(answer: &crate::caller::Answer) -> String {
    answer.expect(403, "Forbidden");
    let message = answer.body["message"].as_str().unwrap_or_default();
    let (_, user) = message.split_once("User \"").expect("it names the user");
    user.split('"').next().unwrap_or_default().to_owned()
}

/// The user that a client is taken for at the server's own port.
async fn user_of(client: &Client, headers: &[(&str, &str)]) -> String {
    refused_user(&client.send("GET", "/metrics", headers, "").await)
}

async fn c_020(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let newcomer = CertificateAuthority::new("client").unwrap();
    let of_newcomer = witness
        .door
        .with_certificate(&certificate(&newcomer, "nora", None));
    assert_eq!(witness.name(&of_newcomer, &[]).await, "");
    let mut data = witness.trust();
    data["client-ca-file"] = newcomer.certificate().into();
    data["requestheader-username-headers"] = r#"["X-Vouched-User"]"#.into();
    witness
        .trust_until(subject, &data, &of_newcomer, (&[], "nora"))
        .await;
    let proxy = witness.door.with_certificate(&witness.proxy());
    let vouched = [("x-remote-user", "root"), ("x-vouched-user", "ann")];
    assert_eq!(witness.name(&proxy, &vouched).await, "ann");
    let asked = witness.relay.asked();
    let reads: Vec<_> = asked.iter().filter(|it| it.is_about_trust()).collect();
    for read in &reads {
        assert_eq!(read.method, "GET");
        let by_name = "fieldSelector=metadata.name%3Dextension-apiserver-authentication";
        assert!(read.path.contains(by_name), "{}", read.path);
    }
    assert!(reads.iter().any(|read| read.path.contains("watch=true")));
    drop(witness);

    let relay = Relay::start(subject).await;
    relay.rule(|question| match question.is_about_trust() {
        true => failure(403),
        false => Reply::Passed,
    });
    let mut refusing = subject.server_through(&relay, &[]);
    let tolerate = "--authentication-tolerate-lookup-failure";
    let mut tolerant = subject.server_through(&relay, &[tolerate]);
    let deadline = Instant::now() + SOON;
    let ended = loop {
        if let Some(status) = refusing.running().process.exited().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it goes on");
        sleep(Duration::from_millis(50)).await;
    };
    assert!(!ended.success());
    assert!(tolerant.running().process.exited().unwrap().is_none());
}

async fn c_021(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let proxy = witness.door.with_certificate(&witness.proxy());
    let ann = [("x-remote-user", "ann")];
    assert_eq!(witness.name(&proxy, &ann).await, "ann");
    for nobody in [&[][..], &[("x-remote-user", "")]] {
        assert_eq!(witness.who(&proxy, nobody).await, None, "{nobody:?}");
    }
    // One for servers says nothing about a client.
    let of_server = witness.proxy_ca.server_certificate(&["front-proxy-client"]);
    let of_server = witness.door.with_certificate(&of_server.unwrap());
    assert_eq!(witness.who(&of_server, &ann).await, None);
    let late = witness
        .door
        .with_certificate(&expired(&witness.proxy_ca, "front-proxy-client"));
    assert_eq!(witness.who(&late, &ann).await, None);
    let stranger = CertificateAuthority::new("proxy").unwrap();
    let stranger = certificate(&stranger, "front-proxy-client", None);
    let stranger = witness.door.with_certificate(&stranger);
    assert_eq!(witness.who(&stranger, &ann).await, None);

    let other = certificate(&witness.proxy_ca, "another-proxy", None);
    let other = witness.door.with_certificate(&other);
    assert_eq!(witness.who(&other, &ann).await, None);
    let mut data = witness.trust();
    data["requestheader-allowed-names"] = "[]".into();
    witness
        .trust_until(subject, &data, &other, (&ann, "ann"))
        .await;
}

async fn c_022(subject: &Subject) {
    let (robot, token) = service_account(subject, "robot").await;
    let witness = Witness::start(subject).await;
    let other = certificate(&witness.proxy_ca, "another-proxy", None);
    let other = witness.door.with_certificate(&other);
    assert_eq!(witness.who(&other, &[]).await, None);
    assert_eq!(witness.who(&other, &SPOOFED).await, None);
    let bearer = format!("Bearer {token}");
    let [user, group, _] = SPOOFED;
    let with_token = [user, group, ("authorization", &bearer)];
    assert_eq!(witness.name(&other, &with_token).await, robot);
}

async fn c_023(subject: &Subject) {
    let door = Door::of(subject);
    assert_eq!(user_of(&door.nobody(), &SPOOFED).await, "system:anonymous");
    let mallory = subject.direct_as("mallory");
    assert_eq!(user_of(&mallory, &SPOOFED).await, "mallory");
    // kube-apiserver does not pass them on either.
    let path = subject.collection();
    let proxied = subject.proxied_as("mallory");
    let refused = proxied.send("GET", &path, &SPOOFED, "").await;
    assert_eq!(refused_user(&refused), "mallory");
}

async fn c_024(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let proxy = witness.door.with_certificate(&witness.proxy());
    let headers = [
        ("x-remote-user", "ann"),
        ("x-remote-group", "dev"),
        ("x-remote-group", "ops"),
        ("x-more-groups", "night"),
        ("x-remote-uid", "7"),
        ("X-Remote-Extra-Example.org%2fRole", "a"),
        ("x-remote-extra-example.org%2Frole", "b"),
        ("X-REMOTE-EXTRA-Scopes", "c"),
    ];
    let who = witness.who(&proxy, &headers).await.unwrap();
    assert_eq!(who["groups"], json!(["dev", "ops", "system:authenticated"]));
    let extra = json!({"example.org/role": ["a", "b"], "scopes": ["c"]});
    assert_eq!(who["extra"], extra);
    assert_eq!(who.get("uid"), None, "no header is named for it");

    let mut data = witness.trust();
    data["requestheader-group-headers"] = r#"["X-Remote-Group","X-More-Groups"]"#.into();
    data["requestheader-uid-headers"] = r#"["X-Remote-Uid"]"#.into();
    witness.relay.trust(subject, &data).await;
    eventually(SOON, "the change is in force", async || {
        let who = witness.who(&proxy, &headers).await.unwrap();
        who["uid"] == "7" && who["groups"] == json!(["dev", "ops", "night", "system:authenticated"])
    })
    .await;
}

async fn c_025(subject: &Subject) {
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
    // A request that goes as far as a node, if the caller may.
    proxy
        .send("GET", &subject.collection(), &proxied, "")
        .await
        .expect(403, "Forbidden");

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

async fn c_026(subject: &Subject) {
    // The aggregator's own questions come without a group, and only known users may read documents.
    let proxy = Door::of(subject).with_certificate(&subject.control_plane.front_proxy());
    for user in ["system:aggregator", "system:kube-aggregator"] {
        let headers = [("x-remote-user", user)];
        let document = proxy.send("GET", "/openapi/v2", &headers, "").await;
        assert!(document.ok()["definitions"].is_object());
        let groups = proxy.send("GET", "/apis", &headers, "").await;
        assert_eq!(groups.ok()["kind"], "APIGroupList");
    }
    let witness = Witness::start(subject).await;
    let proxy = witness.door.with_certificate(&witness.proxy());
    for (shown, expected) in [
        (None, json!(["system:authenticated"])),
        (Some("dev"), json!(["dev", "system:authenticated"])),
        (
            Some("system:authenticated"),
            json!(["system:authenticated"]),
        ),
        (
            Some("system:unauthenticated"),
            json!(["system:unauthenticated"]),
        ),
    ] {
        let mut headers = vec![("x-remote-user", "ann")];
        headers.extend(shown.map(|group| ("x-remote-group", group)));
        let who = witness.who(&proxy, &headers).await.unwrap();
        assert_eq!(who["groups"], expected, "{shown:?}");
    }
    let who = witness.who(&witness.user("jane"), &[]).await.unwrap();
    assert_eq!(who["groups"], json!(["system:authenticated"]));
    let who = witness.who(&witness.door.nobody(), &[]).await.unwrap();
    assert_eq!(who["groups"], json!(["system:unauthenticated"]));
}

async fn c_027(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let pair = certificate(&witness.client_ca, "jane", Some("dev"));
    let who = witness
        .who(&witness.door.with_certificate(&pair), &[])
        .await
        .unwrap();
    assert_eq!(who["user"], "jane");
    assert_eq!(who["groups"], json!(["dev", "system:authenticated"]));
    let id = &who["extra"]["authentication.kubernetes.io/credential-id"];
    let id = id[0].as_str().expect("which certificate it was");
    let digest = id.strip_prefix("X509SHA256=").expect("its digest");
    let hex = |byte: u8| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase();
    assert!(digest.len() == 64 && digest.bytes().all(hex), "{digest}");
    let late = witness
        .door
        .with_certificate(&expired(&witness.client_ca, "jane"));
    assert_eq!(witness.who(&late, &[]).await, None);

    // The users of the control plane, known by the CA that kube-apiserver publishes.
    assert_eq!(user_of(&subject.direct_as("jane"), &[]).await, "jane");
    let stranger = CertificateAuthority::new("kubernetes-ca").unwrap();
    let stranger = certificate(&stranger, "admin", Some("system:masters"));
    let stranger = Door::of(subject).with_certificate(&stranger);
    stranger.get("/metrics").await.expect(401, "Unauthorized");
}

async fn c_028(subject: &Subject) {
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
        for _ in 0..2 {
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

async fn c_029(subject: &Subject) {
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

async fn c_030(subject: &Subject) {
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

async fn c_031(subject: &Subject) {
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

async fn c_032(subject: &Subject) {
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
