//! Conditions of a status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A condition without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// `type`.
    pub kind: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// In CamelCase, for machines.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Said {
    /// The condition of an object of that generation. `known` are the conditions that it has: one whose status stays keeps its
    /// time.
    pub fn condition(
        self,
        known: &[Condition],
        generation: Option<i64>,
        now: Timestamp,
    ) -> Condition {
        let before = known.iter().find(|known| known.type_ == self.kind);
        let since = before.filter(|known| known.status == self.status);
        Condition {
            type_: self.kind.to_owned(),
            status: self.status.to_owned(),
            reason: self.reason.to_owned(),
            message: self.message,
            observed_generation: generation,
            last_transition_time: since
                .map_or(Time(now), |known| known.last_transition_time.clone()),
        }
    }
}
