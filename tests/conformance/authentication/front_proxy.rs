//! Who may speak for others, and certificates.

use std::time::{Duration, Instant};

use sandbox_apiserver::serving::{CertificateAuthority, PemPair};
use serde_json::json;
use tokio::time::sleep;

use super::{SOON, SPOOFED, refused_user, user_of};
use crate::{
    conformance::{
        credentials::{Door, certificate, expired, service_account},
        grants::Grant,
        relay::{Relay, Reply, failure},
        subject::Subject,
        witness::Witness,
    },
    pki::Authority,
    stage::eventually,
};

pub(super) async fn c_020(subject: &Subject) {
    let (robot, token) = service_account(subject, "robot").await;
    Grant::to(&robot, &["list"]).in_force(subject).await;
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
    // The proxy's CA, in exchange for another.
    let successor = CertificateAuthority::new("proxy").unwrap();
    let of_successor = certificate(&successor, "front-proxy-client", None);
    let of_successor = witness.door.with_certificate(&of_successor);
    assert_eq!(witness.name(&of_successor, &vouched).await, "");
    data["requestheader-client-ca-file"] = successor.certificate().into();
    witness
        .trust_until(subject, &data, &of_successor, (&vouched, "ann"))
        .await;
    assert_eq!(witness.name(&proxy, &vouched).await, "");
    let asked = witness.relay.asked();
    let reads: Vec<_> = asked.iter().filter(|it| it.is_about_trust()).collect();
    for read in &reads {
        assert_eq!(read.method, "GET");
        let by_name = "fieldSelector=metadata.name%3Dextension-apiserver-authentication";
        assert!(read.path.contains(by_name), "{}", read.path);
    }
    assert!(reads.iter().any(|read| read.path.contains("watch=true")));
    witness.server.end().await;

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
    // The other serves those whom it knows without: by a token.
    let door = Door::of_server(&tolerant);
    tolerant.listens().await;
    // It lives, and is not said to be ready as long as it knows no CA.
    let livez = door.nobody().get("/livez").await;
    assert_eq!(livez.status, 200, "{:#}", livez.body);
    let by_token = door.with_token(&token);
    eventually(SOON, "it serves", async || {
        by_token.get(&subject.collection()).await.status == 200
    })
    .await;
    assert_eq!(user_of(&by_token, &[]).await, robot);
    let nora = door.with_certificate(&certificate(&newcomer, "nora", None));
    assert_eq!(user_of(&nora, &[]).await, "system:anonymous");
    assert!(tolerant.running().process.exited().unwrap().is_none());
}

pub(super) async fn c_021(subject: &Subject) {
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

pub(super) async fn c_022(subject: &Subject) {
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

pub(super) async fn c_023(subject: &Subject) {
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

pub(super) async fn c_024(subject: &Subject) {
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

pub(super) async fn c_026(subject: &Subject) {
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

pub(super) async fn c_027(subject: &Subject) {
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
    // Each organization is a group.
    let authority = Authority::new("client").unwrap();
    let kate = authority.client_of_two("kate", ["dev", "ops"]).unwrap();
    let kate = witness.door.with_certificate(&PemPair {
        certificate: kate.certificate_pem,
        private_key: kate.key_pem,
    });
    let mut data = witness.trust();
    data["client-ca-file"] = authority.pem().into();
    witness
        .trust_until(subject, &data, &kate, (&[], "kate"))
        .await;
    let who = witness.who(&kate, &[]).await.unwrap();
    assert_eq!(who["groups"], json!(["dev", "ops", "system:authenticated"]));

    // The users of the control plane, known by the CA that kube-apiserver publishes.
    assert_eq!(user_of(&subject.direct_as("jane"), &[]).await, "jane");
    let stranger = CertificateAuthority::new("kubernetes-ca").unwrap();
    let stranger = certificate(&stranger, "admin", Some("system:masters"));
    let stranger = Door::of(subject).with_certificate(&stranger);
    stranger.get("/metrics").await.expect(401, "Unauthorized");
}
