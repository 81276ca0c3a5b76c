//! Which process writes, and where its resource versions begin.
//!
//! All changes go through one process, so that their versions are one sequence. A Lease elects it, and holds the epoch in an
//! annotation: the new holder writes its epoch, higher than every one before, in the same update that makes it the holder, and
//! serves only when kube-apiserver has taken that update. So versions never go backward although nothing but the epoch is
//! stored, and two holders can never have the same epoch.
//!
//! Clocks of different machines are not compared: whether another holder has gone is measured by how long its Lease has not
//! changed here. A holder stops writing five seconds before another may take over, by its own clock, also when its renewal
//! hangs. What was begun before does not stop by itself, so every write that leaves the process asks [`Tenure::holds`] at the
//! last moment: calls that change a node, and the record of what nodes owe.

mod epoch;
mod error;
mod file;
mod holder;
mod lease;

pub use error::{Error, Result};
pub use holder::{Sequencer, Tenure};
pub use lease::{LeaseOptions, own_namespace};
