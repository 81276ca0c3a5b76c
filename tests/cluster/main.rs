//! Tests against a real control plane: etcd, kube-apiserver and kube-controller-manager, as `hack/test` builds them.
//!
//! Tests share one control plane, see [`control_plane::shared`], and work in namespaces of their own. Those that install the whole
//! product, or count what etcd does, have one for themselves, see [`installation`].

#[macro_use]
#[path = "../it/promises.rs"]
mod promises;

mod access;
mod admission;
mod api_service;
mod auth;
mod caller;
mod chaos;
mod chart;
mod claims;
mod clocks;
mod components;
#[path = "../conformance/mod.rs"]
mod conformance;
mod control_plane;
mod dataplane;
mod dev;
mod elsewhere;
mod etcd;
mod faults;
mod freshness;
mod garbage;
mod gateway;
#[path = "../it/gateway_client.rs"]
mod gateway_client;
mod go_client;
mod harness;
mod installation;
mod installed;
mod inventory;
mod kube_client;
mod kubectl;
mod kubelet;
mod lifecycle;
mod lone_server;
mod managed;
mod namespaces;
mod nodes;
mod owed;
mod own_certificate;
mod pki;
mod policy;
mod process;
mod python_client;
mod quotas;
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
