//! An HTTP endpoint to look at a fleet and to drive it: for demos, and for tests in other languages.
//!
//! No authentication; it belongs on loopback. Bodies are JSON.
//!
//! | Request | Effect |
//! |---|---|
//! | `GET /nodes` | every node: name, address, up, claimed, counters |
//! | `GET /nodes/{n}` | the same of one; `{n}` is its name or place |
//! | `GET /nodes/{n}/log` | its latest requests |
//! | `GET /nodes/{n}/journal/{since}` | what became of its VMs, from the entry with this place on |
//! | `GET /nodes/{n}/inventory` | its `NodeInventory` |
//! | `GET`, `PUT`, `DELETE /nodes/{n}/faults` | its faults: shown, replaced by a list, cleared |
//! | `POST /nodes/{n}/claims` | a sandbox behind everybody's back: `{claimRef, template, net, size, ttlSeconds, metadata}` |
//! | `DELETE /nodes/{n}/claims/{id}` | loses a sandbox |
//! | `PUT /nodes/{n}/claims/{id}/failed` | lets its VM die: `{reason}` |
//! | `PUT /nodes/{n}/pools` | a pool's counts at once: `{template, net, size, warm, target}` |
//! | `PUT /nodes/{n}/clock` | sets its clock: `{aheadSeconds}`, below zero behind |
//! | `POST /nodes/{n}/stop`, `POST /nodes/{n}/start` | the node goes and comes back |

use std::{collections::BTreeMap, convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    Error, Fault, Handle, Planted, Refusal, Result, body::MAX_BODY, reply::Reply, size::pool_key,
};

const MAX_CONNECTIONS: usize = 64;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PlantBody {
    #[serde(default)]
    claim_ref: String,
    template: String,
    #[serde(default)]
    net: String,
    #[serde(default)]
    size: String,
    #[serde(default)]
    ttl_seconds: i64,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolCounts {
    template: String,
    #[serde(default)]
    net: String,
    #[serde(default)]
    size: String,
    warm: u32,
    target: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClockBody {
    ahead_seconds: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FailBody {
    reason: String,
}

/// Starts the endpoint and gives the address that it got.
pub(super) fn start(
    address: SocketAddr,
    nodes: Vec<Handle>,
    tasks: &mut JoinSet<()>,
) -> Result<SocketAddr> {
    let listen = || {
        let listener = super::server::bind(address)?.listen(64)?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    let (listener, bound) = listen().map_err(|source| Error::Listen {
        address: address.to_string(),
        source,
    })?;
    tasks.spawn(serve(listener, nodes.into()));
    Ok(bound)
}

async fn serve(listener: tokio::net::TcpListener, nodes: Arc<[Handle]>) {
    // Dropped with this task, so that no connection outlives the fleet.
    let mut connections = JoinSet::new();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        while connections.try_join_next().is_some() {}
        let slot = slots.clone().acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            continue;
        };
        let nodes = nodes.clone();
        connections.spawn(async move {
            let _slot = slot;
            let service = service_fn(|request| respond(&nodes, request));
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn respond(
    nodes: &[Handle],
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, incoming) = request.into_parts();
    let body = Limited::new(incoming, MAX_BODY).collect().await;
    let reply = match body {
        Ok(body) => {
            let body = body.to_bytes();
            answer(nodes, head.method.as_str(), head.uri.path(), &body).await
        }
        Err(_) => Err(Refusal::bad("invalid request body")),
    };
    let reply = reply.unwrap_or_else(Reply::from);
    let mut response = Response::new(Full::new(reply.body));
    *response.status_mut() = reply.status;
    if let Some(kind) = reply.content_type {
        let kind = HeaderValue::from_static(kind);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    Ok(response)
}

async fn answer(nodes: &[Handle], method: &str, path: &str, body: &[u8]) -> Result<Reply, Refusal> {
    let mut segments = path.split('/').skip(1);
    let unknown = || Refusal::not_found("no such route");
    if segments.next() != Some("nodes") {
        return Err(unknown());
    }
    let Some(wanted) = segments.next() else {
        return Ok(Reply::json(&nodes.iter().map(summary).collect::<Vec<_>>()));
    };
    let node = find(nodes, wanted).ok_or_else(|| Refusal::not_found("no such node"))?;
    let rest: Vec<&str> = segments.collect();
    match (method, rest.as_slice()) {
        ("GET", []) => return Ok(Reply::json(&summary(node))),
        ("GET", ["log"]) => return Ok(Reply::json(&node.log())),
        ("GET", ["journal", since]) => {
            let since = since.parse().map_err(|_| unknown())?;
            return Ok(Reply::json(&node.journal(since)));
        }
        ("GET", ["inventory"]) => return Ok(Reply::json(&node.inventory())),
        ("GET", ["faults"]) => return Ok(Reply::json(&node.faults())),
        ("PUT", ["faults"]) => replace_faults(node, body).await?,
        ("DELETE", ["faults"]) => node.clear_faults().await,
        ("POST", ["claims"]) => return plant(node, body),
        ("DELETE", ["claims", id]) => found(node.lose(&(*id).into()))?,
        ("PUT", ["claims", id, "failed"]) => {
            found(node.fail(&(*id).into(), &read::<FailBody>(body)?.reason))?;
        }
        ("PUT", ["clock"]) => node.set_clock(read::<ClockBody>(body)?.ahead_seconds),
        ("PUT", ["pools"]) => set_pool(node, body)?,
        ("POST", ["stop"]) => node.stop().await,
        ("POST", ["start"]) => node.start().await,
        _ => return Err(unknown()),
    }
    Ok(Reply::no_content())
}

fn find<'a>(nodes: &'a [Handle], wanted: &str) -> Option<&'a Handle> {
    let place = wanted
        .parse()
        .ok()
        .and_then(|place: usize| nodes.get(place));
    place.or_else(|| nodes.iter().find(|node| node.name().as_str() == wanted))
}

fn summary(node: &Handle) -> Value {
    json!({
        "name": node.name(),
        "address": node.address().authority(),
        "up": node.is_up(),
        "claimed": node.claimed(),
        "counters": node.counters(),
    })
}

async fn replace_faults(node: &Handle, body: &[u8]) -> Result<(), Refusal> {
    let faults: Vec<Fault> = read(body)?;
    node.clear_faults().await;
    for fault in faults {
        if !node.inject(fault).await {
            node.clear_faults().await;
            return Err(Refusal::bad("an impossible fault, or too many"));
        }
    }
    Ok(())
}

fn plant(node: &Handle, body: &[u8]) -> Result<Reply, Refusal> {
    let body: PlantBody = read(body)?;
    let id = node.plant(Planted {
        key: pool_key(&body.template, &body.net, &body.size)?,
        claim_ref: body.claim_ref,
        ttl_seconds: body.ttl_seconds,
        metadata: body.metadata,
    });
    Ok(Reply::json(&json!({ "id": id })))
}

fn set_pool(node: &Handle, body: &[u8]) -> Result<(), Refusal> {
    let body: PoolCounts = read(body)?;
    let key = pool_key(&body.template, &body.net, &body.size)?;
    node.set_pool(&key, body.warm, body.target);
    Ok(())
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::bad(error.to_string()))
}

fn found(found: bool) -> Result<(), Refusal> {
    found
        .then_some(())
        .ok_or_else(|| Refusal::not_found("no such sandbox"))
}
