//! A node's live change feed: what goes over the wire, the agent's end, and the server's end.
//!
//! One HTTP/2 response of JSON lines for each listener: `hello` with the agent's epoch, the whole state in `part`s up to
//! `snapshotEnd`, then `change`s with consecutive numbers, and once the snapshot is told a `heartbeat` at least every
//! three seconds.
//! Decided here:
//!
//! - A snapshot is made of a look at the daemon that began after the listener asked. Whoever merges it may take absence from
//!   it at its word, since nothing that was done before the question can be missing.
//! - Nothing is resumed. A gap, a new epoch or a broken connection means a new connection, and that begins with a snapshot:
//!   200 bytes a sandbox against a second way to be wrong.
//! - A user's part that changed is told at once, with the row of the last look beside it for older readers, marked as repeated:
//!   whoever changed the part may have changed the sandbox too since that look.
//! - Changes wait in one ring for all listeners, bounded in bytes. A listener that the ring overtakes is cut.
//! - What the agent's own gateway hands over is listed without a look at the daemon, so that listeners hear of it before who
//!   claimed it; a look that began before need not have it.
//! - A heartbeat says whether the daemon answers. An agent that lives beside a dead daemon keeps no node fresh.
//! - Times are by the node's clock, as the daemon tells them, and a heartbeat says what that clock shows. It is a hint and no
//!   measure, since nobody knows how long it was on its way: whoever doubts asks the daemon. After a step of the clock every
//!   row means something else, so a snapshot is asked for again.
//! - What sandboxes use rides on heartbeats: it is no change, and an older reader passes over it.
//! - The agent's certificate is self-made. It is known by its SHA-256, and by nothing else: names and dates mean nothing.

mod backoff;
mod board;
mod client;
mod credential;
mod error;
mod lines;
mod listener;
mod pin;
mod reservation;
mod stage;
mod usage;
mod wire;

pub use backoff::Backoff;
pub use board::{Board, Current, Poll};
pub use client::{Agent, Connection, Listening, RemoteObjects};
pub use credential::Credential;
pub use error::{Error, Result};
pub use listener::{Listener, Overtaken};
pub use pin::CertificatePin;
pub use reservation::{Reservation, Unreserved};
pub use usage::Use;
pub use wire::{Event, NodeState, Pool, Row, Sandbox, State};
