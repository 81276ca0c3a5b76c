//! The client against simulated nodes, over real sockets. What the two disagree on fails here.

mod calls;
mod claims;
mod lifecycle;
mod nodes;

use std::{collections::BTreeSet, time::Duration};

use super::{
    Fault, FaultKind, Fleet, Generation, Handle, JournalEvent, Latency, Options, Planted, Tenant,
};
use crate::{
    api::{ClaimId, NodeAddress, PoolKey, SnapshotId, Token},
    meta::UnixTime,
    sandboxd::{
        CheckpointClaim, ClaimReply, ClaimRequest, Claimed, Client, ClientOptions, Error,
        ForkRequest, Node, OnExpire, PoolSpec, TokenSource,
    },
};

const SOON: Duration = Duration::from_secs(10);
const BRIEF: Duration = Duration::from_millis(300);

fn key(template: &str) -> PoolKey {
    PoolKey {
        template: template.into(),
        net: "none".into(),
        size: "small".into(),
    }
}

fn python() -> PoolKey {
    key("python:3.12")
}

/// One node without delays.
fn mk_options() -> Options {
    Options {
        nodes: 1,
        latency: Latency {
            clone: Duration::ZERO,
            snapshot: Duration::ZERO,
            wake: Duration::ZERO,
            ..Latency::default()
        },
        ..Options::default()
    }
}

async fn start(options: Options) -> Fleet {
    Fleet::start(options).await.unwrap()
}

fn mk_client(token: &str) -> Client {
    Client::new(ClientOptions {
        token: TokenSource::Fixed(Token::from(token.to_owned())),
        ca_file: None,
    })
    .unwrap()
}

fn at<'a>(client: &'a Client, node: &'a Handle) -> Node<'a> {
    client.node(node.address(), SOON)
}

fn named(claim_ref: &str) -> ClaimRequest {
    ClaimRequest {
        claim_ref: claim_ref.to_owned(),
        ..ClaimRequest::new(python())
    }
}

#[track_caller]
fn granted(claimed: Result<Claimed, Error>) -> ClaimReply {
    match claimed.unwrap() {
        Claimed::Granted(reply) => reply,
        Claimed::Redirect { addresses, .. } => panic!("redirected to {addresses:?}"),
    }
}

pub(super) async fn eventually(condition: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(SOON, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("the condition never held");
}
