//! Tests against a real control plane: etcd, kube-apiserver and kube-controller-manager, as `hack/test` builds them.
//!
//! Every test shares one control plane, see [`control_plane::shared`], and works in namespaces of its own.

mod admission;
mod api_service;
mod auth;
mod chart;
mod components;
mod control_plane;
mod etcd;
mod harness;
mod inventory;
mod kubectl;
mod pki;
mod process;
mod rbac;
mod sequencer;
mod stage;
#[path = "../it/tls_client.rs"]
mod tls_client;
mod users;
