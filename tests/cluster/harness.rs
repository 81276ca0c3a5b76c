//! The control plane is what the other tests take it for.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
    runtime::wait::{await_condition, conditions},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{
    api_service::{GROUP, SERVER_NAME},
    control_plane,
    pki::{Authority, Certificate},
};

#[tokio::test]
async fn control_plane_answers_version_and_kubectl() {
    let control_plane = control_plane::shared();
    let version = control_plane.client().apiserver_version().await.unwrap();

    let printed = control_plane
        .kubectl()
        .stdout(&["version", "--output=json"])
        .await;
    let printed: Value = serde_json::from_str(&printed).unwrap();

    assert_eq!(printed["serverVersion"]["gitVersion"], version.git_version);
    // Without the linker flags of a release the binaries would not know which version they are.
    assert_eq!(printed["clientVersion"]["gitVersion"], version.git_version);
}

#[tokio::test]
async fn deleted_namespace_goes_away() {
    let control_plane = control_plane::shared();
    let namespaces: Api<Namespace> = Api::all(control_plane.client());
    let name = control_plane.create_namespace("deleted").await;

    let deleted = namespaces
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    let uid = deleted
        .left()
        .and_then(|namespace| namespace.uid())
        .unwrap();

    // Only the namespace controller takes the finalizer away, after it has asked every API for leftovers.
    let gone = await_condition(namespaces, &name, conditions::is_deleted(&uid));
    tokio::time::timeout(Duration::from_secs(60), gone)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn ordinary_user_may_do_nothing_by_itself() {
    let control_plane = control_plane::shared();
    let nodes: Api<Node> = Api::all(control_plane.client_as("jane"));

    let refused = nodes.list(&ListParams::default()).await.unwrap_err();

    let kube::Error::Api(status) = refused else {
        panic!("{refused}")
    };
    assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
    assert!(
        status.message.contains(r#"User "jane" cannot list"#),
        "{}",
        status.message
    );
}

#[tokio::test]
async fn service_account_token_names_its_account() {
    let control_plane = control_plane::shared();
    let namespace = control_plane.create_namespace("token").await;
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
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token},
    });
    let args = [
        "create",
        "--filename=-",
        "--output=jsonpath={.status.user.username}",
    ];
    let user = control_plane
        .kubectl()
        .stdout_with_input(&args, &review.to_string())
        .await;

    assert_eq!(user, format!("system:serviceaccount:{namespace}:robot"));
}

#[tokio::test]
async fn etcd_shows_what_kubernetes_stores() {
    let control_plane = control_plane::shared();
    let namespace = control_plane.create_namespace("etcd").await;
    let config_maps: Api<ConfigMap> = Api::namespaced(control_plane.client(), &namespace);
    let stored = ConfigMap {
        metadata: ObjectMeta {
            name: Some("in-the-key".to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([("data".to_owned(), "in-the-value".to_owned())].into()),
        ..ConfigMap::default()
    };
    config_maps
        .create(&PostParams::default(), &stored)
        .await
        .unwrap();

    let everything = control_plane.etcd_get_prefix("/registry/").await;

    for (text, n_expected) in [("in-the-key", 1), ("in-the-value", 1), ("in-neither", 0)] {
        let n_found = everything
            .iter()
            .filter(|entry| entry.mentions(text))
            .count();
        assert_eq!(n_found, n_expected, "{text}");
    }
}

#[tokio::test]
async fn applied_custom_resource_definitions_are_served() {
    let control_plane = control_plane::shared();
    let dir = tempfile::tempdir().unwrap();
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    });
    std::fs::write(dir.path().join("gadgets.yaml"), definition.to_string()).unwrap();

    control_plane.apply_crds(dir.path()).await;

    let listed = control_plane
        .kubectl()
        .stdout(&["get", "gadgets", "--output=name"])
        .await;
    assert_eq!(listed, "");
}

#[tokio::test]
async fn registered_server_is_reached_through_kube_apiserver() {
    let control_plane = control_plane::shared();
    let authority = Authority::new("serving-ca").unwrap();
    let port = serve_discovery(&authority.serving(&[SERVER_NAME]).unwrap())
        .await
        .unwrap();

    let registration = control_plane
        .register_api_service(&["v1beta1", "v1alpha1"], port, &authority.pem())
        .await;
    let raw = format!("--raw=/apis/{GROUP}/v1beta1");
    let proxied = control_plane.kubectl().stdout(&["get", &raw]).await;
    let preferred = control_plane
        .kubectl()
        .stdout(&["get", &format!("--raw=/apis/{GROUP}")])
        .await;
    drop(registration);
    let left = control_plane
        .kubectl()
        .stdout(&["get", "apiservices", "--output=name"])
        .await;

    let proxied: Value = serde_json::from_str(&proxied).unwrap();
    assert_eq!(proxied["kind"], "APIResourceList");
    let preferred: Value = serde_json::from_str(&preferred).unwrap();
    assert_eq!(preferred["preferredVersion"]["version"], "v1beta1");
    assert!(!left.contains(&format!("v1beta1.{GROUP}")), "{left}");
}

/// Serves an empty `APIResourceList` for every path, and returns the port.
async fn serve_discovery(certificate: &Certificate) -> anyhow::Result<u16> {
    let chain = CertificateDer::from_pem_slice(certificate.certificate_pem.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(certificate.key_pem.as_bytes())?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // kube-apiserver may well hang up in the middle; the test judges by what comes through.
                if let Ok(stream) = acceptor.accept(stream).await {
                    let _ = auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service_fn(answer))
                        .await;
                }
            });
        }
    });
    Ok(port)
}

async fn answer(request: Request<Incoming>) -> http::Result<Response<Full<Bytes>>> {
    let group_version = request.uri().path().trim_start_matches("/apis/");
    let body = json!({
        "apiVersion": "v1",
        "kind": "APIResourceList",
        "groupVersion": group_version,
        "resources": [],
    });
    Response::builder()
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())))
}
