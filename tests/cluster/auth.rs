//! Authentication and authorization as a real kube-apiserver sees them.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use kube::config::{KubeConfigOptions, Kubeconfig};
use sandbox_apiserver::{
    auth::{
        Attributes, AuthMetrics, Authenticator, Authorizer, ClientTrust, Decision, Error, Identity,
        ImpersonationError, Origin, ResourceAttributes, TokenReviewer, UserInfo, WhenUnreadable,
        impersonate,
    },
    cli::write_client,
    serving::{
        CertificateAuthority, Connection, PemPair, ServeOptions, TlsMaterial, Transport, run,
    },
    telemetry::{Readiness, Tasks},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    api_service::{GROUP, SERVER_NAME},
    control_plane::{self, ControlPlane},
    tls_client,
};

const SOON: Duration = Duration::from_secs(30);

/// A server that answers with whom it takes its caller for.
struct Server {
    address: SocketAddr,
    ca: CertificateAuthority,
    _tasks: Tasks,
    _running: DropGuard,
}

impl Server {
    /// Runs as a user of its own, with the two roles that every aggregated server needs.
    async fn start(control_plane: &ControlPlane, name: &str) -> Self {
        let client = delegate(control_plane, name).await;
        let (shutdown, readiness) = (CancellationToken::new(), Readiness::new());
        let mut tasks = Tasks::new(shutdown.clone());
        let check = readiness.check("config-map");
        let metrics = AuthMetrics::default();
        let refuse = WhenUnreadable::Refuse;
        let trust = ClientTrust::follow(client.clone(), refuse, &mut tasks, check, metrics.clone())
            .await
            .unwrap();
        assert!(readiness.is_ready());
        let tokens = TokenReviewer::new(client, Vec::new(), metrics.clone());
        let authenticator = Arc::new(Authenticator::delegated(trust, tokens, true, metrics));
        let app = move |connection: Arc<Connection>, request| {
            whoami(authenticator.clone(), connection, request)
        };
        let ca = CertificateAuthority::new("serving").unwrap();
        let pair = ca.server_certificate(&[SERVER_NAME, "localhost"]).unwrap();
        let transport = Transport::Tls(Arc::new(TlsMaterial::from_pem(&pair).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(run(
            listener,
            transport,
            app,
            ServeOptions::default(),
            shutdown.clone(),
        ));
        Self {
            address,
            ca,
            _tasks: tasks,
            _running: shutdown.drop_guard(),
        }
    }

    /// Whom a direct call is taken for; `None` for 401.
    async fn whoami(
        &self,
        certificate: Option<&PemPair>,
        headers: &[(&str, &str)],
    ) -> Option<Value> {
        let tls = tls_client::config(self.ca.certificate(), certificate, &["h2"]);
        let stream = tls_client::connect(self.address, tls).await.unwrap();
        let mut request = tls_client::get("/");
        for (name, value) in headers {
            request.headers_mut().append(
                name.parse::<http::HeaderName>().unwrap(),
                value.parse().unwrap(),
            );
        }
        let response = tls_client::http2(stream)
            .await
            .send_request(request)
            .await
            .unwrap();
        match response.status() {
            StatusCode::UNAUTHORIZED => None,
            _ => Some(serde_json::from_str(&tls_client::text(response).await).unwrap()),
        }
    }
}

async fn whoami(
    authenticator: Arc<Authenticator>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let mut headers = request.into_parts().0.headers;
    match authenticator.authenticate(&mut headers, &connection).await {
        Ok(Identity { user, origin }) => Response::new(Full::from(
            json!({"name": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra, "proxied": origin == Origin::Proxied}).to_string(),
        )),
        Err(_) => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            response
        }
    }
}

/// A client that repeats nothing, of `user`.
async fn once(control_plane: &ControlPlane, user: &str) -> kube::Client {
    let kubeconfig = Kubeconfig::read_from(control_plane.kubeconfig_as(user)).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    write_client(config).unwrap()
}

/// A client of a user who may ask for reviews and read whom to trust.
async fn delegate(control_plane: &ControlPlane, user: &str) -> kube::Client {
    let (kubectl, user_flag) = (control_plane.kubectl(), format!("--user={user}"));
    kubectl
        .stdout(&[
            "create",
            "clusterrolebinding",
            user,
            "--clusterrole=system:auth-delegator",
            &user_flag,
        ])
        .await;
    may_read_config_map(control_plane, user).await;
    once(control_plane, user).await
}

async fn may_read_config_map(control_plane: &ControlPlane, user: &str) {
    let role = "--role=extension-apiserver-authentication-reader";
    let user_flag = format!("--user={user}");
    control_plane
        .kubectl()
        .stdout(&[
            "create",
            "rolebinding",
            user,
            "--namespace=kube-system",
            role,
            &user_flag,
        ])
        .await;
}

/// Lets `user` do `verbs` with sandboxes in `namespace`, all of them or only those of `names`. kubectl's own `create role` wants
/// the resource to be served.
async fn may(
    control_plane: &ControlPlane,
    user: &str,
    verbs: &[&str],
    namespace: &str,
    names: &[&str],
) {
    let rule = json!({"apiGroups": [GROUP], "resources": ["sandboxes"], "verbs": verbs, "resourceNames": names});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": user, "namespace": namespace},
        "rules": [rule],
    });
    let kubectl = control_plane.kubectl();
    let create = ["create", "--filename=-"];
    kubectl.stdout_with_input(&create, &role.to_string()).await;
    let (role, user_flag) = (format!("--role={user}"), format!("--user={user}"));
    let bind = [
        "create",
        "rolebinding",
        user,
        &role,
        &user_flag,
        "--namespace",
        namespace,
    ];
    kubectl.stdout(&bind).await;
}

/// The certificate that the control plane knows `user` by.
pub(crate) fn certificate_of(control_plane: &ControlPlane, user: &str) -> PemPair {
    let kubeconfig = control_plane.kubeconfig_as(user);
    let read = |extension| {
        std::fs::read_to_string(Path::new(&kubeconfig).with_extension(extension)).unwrap()
    };
    PemPair {
        certificate: read("crt"),
        private_key: read("key"),
    }
}

// Adyen/kubectl-rexec#171
#[tokio::test]
async fn kube_apiserver_speaks_for_its_users_and_nobody_else_does() {
    let control_plane = control_plane::shared();
    let server = Server::start(&control_plane, "auth-proxied").await;
    let (port, ca) = (server.address.port(), server.ca.certificate());
    let _registration = control_plane
        .register_api_service(&["v1beta1"], port, ca)
        .await;
    let namespace = control_plane.create_namespace("proxied").await;
    let raw = format!("--raw=/apis/{GROUP}/v1beta1/namespaces/{namespace}/sandboxes/x");
    may(&control_plane, "proxied-jane", &["get"], &namespace, &[]).await;
    let admin = control_plane.kubectl();

    let who = control_plane
        .kubectl_as("proxied-jane")
        .stdout(&["get", &raw])
        .await;
    let who: Value = serde_json::from_str(&who).unwrap();
    assert_eq!(
        (&who["name"], &who["groups"], &who["proxied"]),
        (
            &json!("proxied-jane"),
            &json!(["system:authenticated"]),
            &json!(true)
        )
    );
    let credential = who["extra"]["authentication.kubernetes.io/credential-id"][0]
        .as_str()
        .unwrap();
    assert!(credential.starts_with("X509SHA256="), "{credential}");

    // kube-apiserver has resolved the impersonation, and its headers are gone.
    let who = admin
        .stdout(&[
            "get",
            &raw,
            "--as=bob",
            "--as-group=system:masters",
            "--as-group=dev",
        ])
        .await;
    let who: Value = serde_json::from_str(&who).unwrap();
    assert_eq!(
        (&who["name"], &who["proxied"]),
        (&json!("bob"), &json!(true))
    );
    assert_eq!(
        who["groups"],
        json!(["system:masters", "dev", "system:authenticated"])
    );

    let spoofed = [
        ("X-Remote-User", "root"),
        ("X-Remote-Group", "system:masters"),
    ];
    let who = server.whoami(None, &spoofed).await.unwrap();
    assert_eq!(who["name"], "system:anonymous");
    let jane = certificate_of(&control_plane, "proxied-jane");
    let who = server.whoami(Some(&jane), &spoofed).await.unwrap();
    assert_eq!(who["name"], "proxied-jane");
}

#[tokio::test]
async fn direct_callers_are_known_by_certificate_and_token() {
    let control_plane = control_plane::shared();
    let server = Server::start(&control_plane, "auth-direct").await;
    let jane = certificate_of(&control_plane, "direct-jane");
    let who = server.whoami(Some(&jane), &[]).await.unwrap();
    assert_eq!(
        (&who["name"], &who["proxied"]),
        (&json!("direct-jane"), &json!(false))
    );

    let namespace = control_plane.create_namespace("direct").await;
    control_plane
        .kubectl()
        .stdout(&[
            "create",
            "serviceaccount",
            "robot",
            "--namespace",
            &namespace,
        ])
        .await;
    let token = control_plane
        .service_account_token(&namespace, "robot")
        .await;
    let who = server
        .whoami(None, &[("Authorization", &format!("Bearer {token}"))])
        .await
        .unwrap();
    assert_eq!(
        who["name"],
        format!("system:serviceaccount:{namespace}:robot")
    );
    let groups = json!([
        "system:serviceaccounts",
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated"
    ]);
    assert_eq!(who["groups"], groups);
    assert!(
        who["uid"].as_str().is_some_and(|uid| uid.len() == 36),
        "{who}"
    );

    let (head, _) = token.rsplit_once('.').unwrap();
    let forged = format!("Bearer {head}.c2lnbmF0dXJl");
    assert_eq!(
        server.whoami(None, &[("Authorization", &forged)]).await,
        None
    );
    let stranger = CertificateAuthority::new("kubernetes-ca").unwrap();
    let now = std::time::SystemTime::now();
    let forged = stranger
        .client_certificate("admin", Some("system:masters"), now - SOON..now + SOON)
        .unwrap();
    assert_eq!(server.whoami(Some(&forged), &[]).await, None);
}

#[tokio::test]
async fn rbac_decides() {
    let control_plane = control_plane::shared();
    let client = delegate(&control_plane, "auth-rbac").await;
    let authorizers = [false, true].map(|ask_every_name| {
        Authorizer::delegated(client.clone(), ask_every_name, AuthMetrics::default())
    });
    let namespace = control_plane.create_namespace("rbac").await;
    let verbs = ["get", "list", "watch"];
    may(&control_plane, "rbac-all", &verbs, &namespace, &[]).await;
    may(&control_plane, "rbac-one", &verbs, &namespace, &["x"]).await;
    let labels = "a in (x,y),!b".parse().unwrap();
    let get = |name| ResourceAttributes {
        verb: "get",
        group: GROUP,
        version: "v1beta1",
        resource: "sandboxes",
        namespace: &namespace,
        name,
        ..ResourceAttributes::default()
    };
    let list = ResourceAttributes {
        verb: "list",
        label_selector: Some(&labels),
        ..get("")
    };
    let watch_one = ResourceAttributes {
        verb: "watch",
        ..get("x")
    };
    let fork = ResourceAttributes {
        verb: "create",
        subresource: "fork",
        ..get("x")
    };
    let elsewhere = ResourceAttributes {
        namespace: "default",
        ..get("x")
    };
    for (user, attributes, allowed) in [
        ("rbac-all", get("x"), true),
        ("rbac-all", list, true),
        ("rbac-all", fork, false),
        ("rbac-all", elsewhere, false),
        ("rbac-one", get("x"), true),
        ("rbac-one", get("y"), false),
        ("rbac-one", watch_one, true),
        ("rbac-one", list, false),
        ("rbac-none", get("x"), false),
    ] {
        let who = UserInfo::new(user, &["system:authenticated"]);
        for origin in [Origin::Direct, Origin::Proxied] {
            for authorizer in &authorizers {
                let decision = authorizer
                    .authorize(&who, &Attributes::Resource(attributes), origin)
                    .await
                    .unwrap();
                assert_eq!(
                    decision == Decision::Allow,
                    allowed,
                    "{user} {attributes:?}"
                );
            }
        }
    }
    let [authorizer, _] = authorizers;
    let version = Attributes::NonResource {
        verb: "get",
        path: "/version",
    };
    let metrics = Attributes::NonResource {
        verb: "get",
        path: "/metrics",
    };
    let who = UserInfo::new("rbac-none", &["system:authenticated"]);
    assert_eq!(
        authorizer
            .authorize(&who, &version, Origin::Direct)
            .await
            .unwrap(),
        Decision::Allow
    );
    assert_ne!(
        authorizer
            .authorize(&who, &metrics, Origin::Direct)
            .await
            .unwrap(),
        Decision::Allow
    );
}

#[tokio::test]
async fn who_may_not_ask_for_reviews_lets_nobody_in() {
    let control_plane = control_plane::shared();
    let authorizer = Authorizer::delegated(
        once(&control_plane, "auth-powerless").await,
        false,
        AuthMetrics::default(),
    );
    let who = UserInfo::new("anybody", &["system:authenticated"]);
    let attributes = Attributes::NonResource {
        verb: "get",
        path: "/version",
    };
    let decision = authorizer
        .authorize(&who, &attributes, Origin::Direct)
        .await;
    assert!(
        matches!(decision, Err(Error::Review { .. })),
        "{decision:?}"
    );
}

#[tokio::test]
async fn impersonation_needs_a_right_for_every_item() {
    let control_plane = control_plane::shared();
    let client = delegate(&control_plane, "auth-impersonation").await;
    let authorizer = Authorizer::delegated(client, false, AuthMetrics::default());
    let kubectl = control_plane.kubectl();
    let caller = "impersonator";
    let rules = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": caller}, "rules": [
        {"apiGroups": [""], "resources": ["users", "groups"], "verbs": ["impersonate"], "resourceNames": ["jane", "dev"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/scopes"], "verbs": ["impersonate"], "resourceNames": ["view"]},
    ]});
    kubectl
        .stdout_with_input(&["create", "--filename=-"], &rules.to_string())
        .await;
    kubectl
        .stdout(&[
            "create",
            "clusterrolebinding",
            caller,
            &format!("--clusterrole={caller}"),
            &format!("--user={caller}"),
        ])
        .await;
    let attempt = async |pairs: &[(&'static str, &'static str)]| {
        let identity = Identity {
            user: Arc::new(UserInfo::new(caller, &[])),
            origin: Origin::Direct,
        };
        let header = |&(name, value)| {
            (
                http::HeaderName::from_static(name),
                http::HeaderValue::from_static(value),
            )
        };
        impersonate(
            &authorizer,
            identity,
            &mut pairs.iter().map(header).collect(),
        )
        .await
    };
    let jane = ("impersonate-user", "jane");
    let identity = attempt(&[
        jane,
        ("impersonate-group", "dev"),
        ("impersonate-extra-scopes", "view"),
    ])
    .await
    .unwrap();
    assert_eq!(
        (identity.user.name.as_str(), &identity.user.groups[0]),
        ("jane", &"dev".to_owned())
    );
    for (pairs, refused) in [
        (&[("impersonate-user", "admin")][..], r#"users "admin""#),
        (
            &[jane, ("impersonate-group", "system:masters")],
            r#"groups "system:masters""#,
        ),
        (
            &[jane, ("impersonate-extra-scopes", "edit")],
            r#"userextras "edit""#,
        ),
        (&[jane, ("impersonate-uid", "1")], r#"uids "1""#),
        (
            &[(
                "impersonate-user",
                "system:serviceaccount:kube-system:default",
            )],
            r#"serviceaccounts "default""#,
        ),
    ] {
        let outcome = attempt(pairs).await;
        let Err(ImpersonationError::Forbidden { wanted, .. }) = outcome else {
            panic!("{pairs:?}: {outcome:?}");
        };
        assert_eq!(wanted.to_string(), refused);
    }
}

// Adyen/kubectl-rexec#171
#[tokio::test]
async fn who_cannot_read_whom_to_trust_does_not_start_or_waits_for_it() {
    let control_plane = control_plane::shared();
    let client = once(&control_plane, "auth-unreadable").await;
    let (readiness, mut tasks) = (Readiness::new(), Tasks::new(CancellationToken::new()));
    let follow = async |when, tasks: &mut Tasks| {
        let check = readiness.check("config-map");
        ClientTrust::follow(
            client.clone(),
            when,
            tasks,
            check.clone(),
            AuthMetrics::default(),
        )
        .await
        .map(|_| check)
    };
    let refused = follow(WhenUnreadable::Refuse, &mut tasks).await;
    assert!(matches!(refused, Err(Error::ConfigMap(_))), "{refused:?}");
    let check = follow(WhenUnreadable::Tolerate, &mut tasks).await.unwrap();
    assert!(!check.passes());

    may_read_config_map(&control_plane, "auth-unreadable").await;
    let read = async {
        while !check.passes() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(60), read)
        .await
        .expect("the ConfigMap is read once that is allowed");
}
