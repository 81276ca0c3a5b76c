//! Sandboxes of a fleet of nodes as ordinary Kubernetes objects, without an object in etcd for each.
//!
//! # Map
//!
//! One room, one duty. A room imports only the rooms listed in its row; `tests/it/layers.rs` reads this table and the
//! `use crate::` lines and compares them, so an arrow is added on purpose. Every room but `meta`, `api`, `store`, `schema`,
//! `managed` and `fleet` may also import `telemetry`; nobody imports `cli`, and only `cli` imports `sim`.
//!
//! | Room | What lives there | Imports |
//! |---|---|---|
//! | `meta` | words of the Kubernetes API: resource versions, selectors, names, times | |
//! | `api` | types of our API groups and their keys | `meta` |
//! | `telemetry` | log setup, metrics registry, readiness, shutdown token, tasks and work that outlives who waits for it | |
//! | `serving` | TLS material and reload, accept loop, connection limit, drain | |
//! | `store` | a versioned store: version chains, change log, pages, watch cursors | `meta` |
//! | `schema` | structural schemas: pruning, defaults, validation, OpenAPI documents, CRDs | `meta` |
//! | `managed` | field ownership: managedFields, server-side apply, what an update owns | `meta` `schema` |
//! | `sandboxd` | the node daemon's HTTP API and its guests' agent: their JSON, the client, how far a node's clock is off | `api` `meta` |
//! | `fleet` | the index: what the nodes say and what we did, merged into sandboxes | `api` `meta` `store` |
//! | `snapshots` | the index of checkpoints, and the questions that keep it | `api` `meta` `store` `fleet` `sandboxd` |
//! | `auth` | who calls and what they may: front proxy, certificates, tokens, access reviews | `meta` `serving` |
//! | `admission` | what every write must pass beside its own validation: the namespace's life, its quotas | `meta` `store` |
//! | `sequencer` | the Lease that elects the writer and keeps the epoch | `meta` |
//! | `feed` | a node's live change feed: its lines, the agent's end, the server's end | `api` `meta` `sandboxd` |
//! | `inventory` | NodeInventory watch, live feeds and direct reads, merged into the fleet | `api` `meta` `fleet` `sandboxd` `feed` |
//! | `node` | the node agent: reads the local daemon, publishes its inventory, serves the feed, keeps what users sent, hands warm VMs over | `api` `meta` `sandboxd` `feed` `serving` `auth` |
//! | `gateway` | claims and lifecycle calls routed to nodes, lost answers settled | `api` `meta` `store` `fleet` `snapshots` `admission` `sandboxd` `inventory` |
//! | `controller` | what controllers share: watches, calls to kube-apiserver, conditions | |
//! | `certificate` | the server's own CA and serving certificate: kept in a Secret, renewed, told to the APIServices | `serving` `sequencer` `controller` |
//! | `warmpool` | controller from warm-pool objects to the daemons' pools | `api` `meta` `fleet` `sandboxd` `controller` `sequencer` |
//! | `claims` | controller that binds SandboxClaim objects | `api` `meta` `store` `fleet` `admission` `gateway` `controller` |
//! | `ledger` | releases that nodes owe, kept in their inventories over a restart | `api` `gateway` `sequencer` |
//! | `apiserver` | the Kubernetes API machinery, generic over a resource | `meta` `store` `schema` `managed` `serving` `auth` `admission` |
//! | `resources` | what is served with it: sandboxes, their subresources, snapshots | `api` `meta` `store` `schema` `fleet` `snapshots` `admission` `gateway` `apiserver` |
//! | `dataplane` | commands and files of sandboxes, by the routes of the SDKs' router | `api` `meta` `store` `fleet` `gateway` `sandboxd` `apiserver` |
//! | `sim` | the node daemon for tests and demos | `api` `meta` `serving` `sandboxd` |
//! | `cli` | a file a subcommand: wiring only | every room |
//!
//! # Invariants
//!
//! - `meta`, `api`, `store`, `schema`, `managed` and `fleet` never read a clock and never wait: time is an argument.
//! - No lock is held over an `.await`.
//! - A token is never stored in `fleet`, and prints as `***`.

pub mod admission;
pub mod api;
pub mod apiserver;
pub mod auth;
pub mod certificate;
pub mod claims;
pub mod cli;
pub mod controller;
pub mod dataplane;
pub mod feed;
pub mod fleet;
pub mod gateway;
pub mod inventory;
pub mod ledger;
pub mod managed;
pub mod meta;
pub mod node;
pub mod resources;
pub mod sandboxd;
pub mod schema;
pub mod sequencer;
pub mod serving;
pub mod sim;
pub mod snapshots;
pub mod store;
pub mod telemetry;
pub mod warmpool;
