//! The Lease that a real kube-apiserver keeps.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use sandbox_apiserver::{
    sequencer::{LeaseOptions, Sequencer},
    telemetry::Readiness,
};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::control_plane;

const SOON: Duration = Duration::from_secs(30);

fn mk_options(namespace: &str, identity: &str) -> LeaseOptions {
    LeaseOptions {
        identity: identity.to_owned(),
        duration: Duration::from_secs(3),
        renew_deadline: Duration::from_secs(2),
        period: Duration::from_millis(200),
        ..LeaseOptions::new(namespace.to_owned(), 443)
    }
}

async fn acquire(client: kube::Client, options: LeaseOptions, readiness: &Readiness) -> Sequencer {
    let (shutdown, check) = (
        CancellationToken::new(),
        readiness.check(options.identity.clone()),
    );
    let acquired = Sequencer::acquire(client, options, check, &shutdown);
    timeout(SOON, acquired)
        .await
        .expect("the lease is to be had")
        .unwrap()
}

#[tokio::test]
async fn one_process_writes_at_a_time_and_versions_only_rise() {
    let control_plane = control_plane::shared();
    let namespace = control_plane.create_namespace("sequencer").await;
    let client = control_plane.client();
    let acquire = async |identity: &str, readiness: &Readiness| {
        acquire(client.clone(), mk_options(&namespace, identity), readiness).await
    };
    let readiness = Readiness::new();
    let first = acquire("a:443", &readiness).await;
    assert!(first.tenure().holds() && readiness.is_ready());

    // It stays the holder over many renewals, and the other waits.
    let other = acquire("b:443", &readiness);
    tokio::pin!(other);
    assert!(timeout(Duration::from_secs(5), &mut other).await.is_err());
    assert!(first.tenure().holds() && !first.tenure().lost().is_cancelled());
    let mut versions = vec![first.first_version()];

    // A killed process takes its own Lease back at once.
    drop(first);
    let since = Instant::now();
    let again = acquire("a:443", &Readiness::new()).await;
    assert!(
        since.elapsed() < Duration::from_secs(2),
        "{:?}",
        since.elapsed()
    );
    versions.push(again.first_version());

    // Released, the other has it at once.
    let lost = again.tenure().lost().clone();
    again.release().await;
    assert!(lost.is_cancelled());
    let second = timeout(Duration::from_secs(2), &mut other)
        .await
        .expect("the lease is free");
    versions.push(second.first_version());

    // Abandoned, it has to run out.
    drop(second);
    let since = Instant::now();
    let third = acquire("c:443", &Readiness::new()).await;
    assert!(
        since.elapsed() > Duration::from_secs(2),
        "{:?}",
        since.elapsed()
    );
    versions.push(third.first_version());
    assert!(
        versions.is_sorted_by(|before, after| before < after),
        "{versions:?}"
    );

    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let lease = leases.get("sandbox-apiserver").await.unwrap();
    let epoch = &lease.metadata.annotations.unwrap()["sandbox.cocoonstack.io/epoch"];
    assert_eq!(*epoch, third.first_version().epoch().to_string());
    assert_eq!(lease.spec.unwrap().lease_transitions, Some(2));

    // With the Lease goes the right to write.
    leases
        .delete("sandbox-apiserver", &Default::default())
        .await
        .unwrap();
    timeout(SOON, third.tenure().lost().cancelled())
        .await
        .expect("it is lost");
    assert!(!third.tenure().holds());
}

#[tokio::test]
async fn who_may_not_write_the_lease_waits_until_it_may() {
    let control_plane = control_plane::shared();
    let namespace = control_plane.create_namespace("sequencer-rbac").await;
    let readiness = Readiness::new();
    let client = control_plane.client_as("sequencer-powerless");
    let waiting = acquire(client, mk_options(&namespace, "a:443"), &readiness);
    tokio::pin!(waiting);
    assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
    assert!(!readiness.is_ready());

    let kubectl = control_plane.kubectl();
    let in_namespace = format!("--namespace={namespace}");
    kubectl
        .stdout(&[
            "create",
            "role",
            "writer",
            "--verb=get,create,update",
            "--resource=leases.coordination.k8s.io",
            &in_namespace,
        ])
        .await;
    kubectl
        .stdout(&[
            "create",
            "rolebinding",
            "writer",
            "--role=writer",
            "--user=sequencer-powerless",
            &in_namespace,
        ])
        .await;
    assert!(waiting.await.tenure().holds());
    assert!(readiness.is_ready());
}
