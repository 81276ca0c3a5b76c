//! Tests against a real control plane: etcd, kube-apiserver and kube-controller-manager, as `hack/test` builds them.
//!
//! Every test shares one control plane, see [`control_plane::shared`], and works in namespaces of its own.

mod access;
mod admission;
mod api_service;
mod auth;
mod caller;
mod chart;
mod claims;
mod components;
#[path = "../conformance/mod.rs"]
mod conformance;
mod control_plane;
mod elsewhere;
mod etcd;
mod faults;
mod freshness;
mod garbage;
mod go_client;
mod harness;
mod inventory;
mod kube_client;
mod kubectl;
mod lifecycle;
mod managed;
mod namespaces;
mod nodes;
mod owed;
mod pki;
mod policy;
mod process;
mod python_client;
mod rbac;
mod restart;
mod sandboxes;
mod scale;
mod secrets;
mod sequencer;
mod snapshot_conformance;
mod snapshots;
#[path = "../it/socket_client.rs"]
mod socket_client;
mod stage;
#[path = "../it/tls_client.rs"]
mod tls_client;
mod twin;
mod users;
mod warm_pools;
mod watches;
mod websocket;
