//! What the data plane counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use super::target::Action;
use crate::telemetry::Metrics;

/// Counters of commands and files. The default counts into nothing that is shown.
#[derive(Clone, Debug, Default)]
pub struct DataPlaneMetrics {
    calls: Family<CallLabels, Counter>,
    pub(super) open_calls: Gauge,
    transferred: Family<TransferLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    action: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransferLabels {
    direction: &'static str,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As it was asked for.
    Done,
    /// With a refusal that is the caller's to mend, of the 400s.
    Refused,
    /// With any other one, or in the middle of an answer.
    Failed,
    /// Its client had left.
    Left,
}

impl DataPlaneMetrics {
    /// Counters that show in `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let room = "dataplane";
        let new = Self::default();
        Self {
            calls: metrics.register(
                room,
                "calls",
                "Commands and files asked for, by action and result",
                new.calls,
            ),
            open_calls: metrics.register(
                room,
                "open_calls",
                "Commands and files under way",
                new.open_calls,
            ),
            transferred: metrics.register(
                room,
                "transferred_bytes",
                "Bytes of files, by direction: into sandboxes or out of them",
                new.transferred,
            ),
        }
    }

    pub(super) fn ended(&self, action: Action, outcome: Outcome) {
        let result = match outcome {
            Outcome::Done => "done",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
            Outcome::Left => "left",
        };
        let action = action.as_str();
        self.calls
            .get_or_create(&CallLabels { action, result })
            .inc();
    }

    /// The counter of bytes that go this way.
    pub(super) fn bytes(&self, direction: &'static str) -> Counter {
        let labels = TransferLabels { direction };
        self.transferred.get_or_create(&labels).clone()
    }
}
