//! What an operator sees of the process: its log, its metrics, its health, and how it ends; and its tasks, with the work that outlives
//! who waits for it.
//!
//! The lowest room that knows of a process. Other rooms take a [`Check`], a [`Metrics`] or a [`Tasks`] as an argument, so
//! that nothing here is global but the log.

mod attended;
mod log;
mod metrics;
mod readiness;
mod shutdown;
mod tasks;

pub use attended::{Attended, Panicked, answer_of};
pub use log::{DEFAULT_FILTER, Error, LogFormat, Result, init_log};
pub use metrics::{METRICS_CONTENT_TYPE, Metrics, latency_histogram};
pub use readiness::{Check, Probe, ProbeAnswer, Readiness};
pub use shutdown::shutdown_on_signal;
pub use tasks::Tasks;
