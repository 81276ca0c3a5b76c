//! The HTTP API of `sandboxd`, the daemon on each node: its JSON and a client for it.
//!
//! One [`Client`] speaks to every node over kept HTTP/1.1 connections. Decisions that bind this room:
//!
//! - Connections are pooled here, over hyper's connection type, and not by a ready-made client: a claim must never be sent
//!   twice, and whether a request was handed to a connection or not is the difference between "go elsewhere" and "ask
//!   first". A general client hides that line behind one deadline, and has no bound on connections to one host.
//! - Nothing is repeated but a request that no connection took. HTTP redirects are answers, never instructions.
//! - Clocks of different machines are never compared, so the times of an answer are moved to our clock before anybody sees
//!   them. How far a node's clock is off its answers say themselves, in `Date`; nobody asks for it, and within 5 s a clock is
//!   right.
//! - A call into a guest, which may last minutes, has a connection of its own. What comes of it is bounded as it comes: a guest
//!   is nobody's to trust.
//! - A call that changes a node names its [`NodeAddress`](crate::api::NodeAddress); who may be called is the caller's rule.

mod answer;
mod client;
mod clock;
mod clocks;
mod connections;
mod dated;
mod error;
mod frames;
mod guest;
mod inside;
mod token;
mod wire;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod hostile_guest_tests;

pub use client::{Client, ClientOptions, Ended, Node};
pub use clock::{ClockOffset, NodeTime};
pub use connections::dial;
pub use error::{Error, Result};
pub use frames::{GuestEntry, GuestKind, GuestStat};
pub use guest::{Guest, GuestError, GuestFile, GuestRefusal, LastingGuest, WriteError};
pub use inside::{ExecReply, ExecRequest};
pub use token::TokenSource;
pub use wire::{
    CheckpointClaim, CheckpointRecord, ClaimReply, ClaimRequest, Claimed, ForkRequest, Info,
    OnExpire, PoolInfo, PoolSpec, Promoted, Sandbox, SandboxRow, Stats, TemplateInfo,
};
