//! Which times are in an answer. All of them are by the node's clock, so that an answer cannot be read without having said this.

use super::{
    CheckpointRecord, ClaimReply, Claimed, Info, Promoted, Sandbox, SandboxRow, Stats,
    clock::{ClockOffset, NodeTime},
    wire::{Checkpointed, Checkpoints, Children, Renewed, Sandboxes},
};
use crate::meta::UnixTime;

/// An answer with all its times.
pub(super) trait Dated {
    /// Calls `change` with each time.
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime));

    /// Moves the times from the node's clock to ours.
    fn to_our_clock(&mut self, offset: ClockOffset) {
        if !offset.is_zero() {
            self.each_time(&mut |time| *time = offset.ours(NodeTime::told(*time)));
        }
    }
}

impl Dated for UnixTime {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        change(self);
    }
}

impl<T: Dated> Dated for Option<T> {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        if let Some(dated) = self {
            dated.each_time(change);
        }
    }
}

impl<T: Dated> Dated for Vec<T> {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        for dated in self {
            dated.each_time(change);
        }
    }
}

impl Dated for Claimed {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        match self {
            Self::Granted(reply) => reply.each_time(change),
            Self::Redirect { .. } => {}
        }
    }
}

impl Dated for ClaimReply {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        self.deadline.each_time(change);
    }
}

impl Dated for Children {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        self.children.each_time(change);
    }
}

impl Dated for Renewed {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        self.deadline.each_time(change);
    }
}

impl Dated for SandboxRow {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        self.deadline.each_time(change);
        self.claimed_at.each_time(change);
    }
}

impl Dated for Sandboxes {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        self.sandboxes.each_time(change);
    }
}

impl Dated for Sandbox {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        self.row.each_time(change);
    }
}

impl Dated for Stats {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        self.measured_at.each_time(change);
    }
}

impl Dated for Info {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        for template in &mut self.templates {
            template.created_at.each_time(change);
        }
    }
}

impl Dated for Promoted {
    fn each_time(&mut self, _: &mut impl FnMut(&mut UnixTime)) {}
}

impl Dated for CheckpointRecord {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        self.created_at.each_time(change);
    }
}

impl Dated for Checkpointed {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        self.checkpoint.each_time(change);
    }
}

impl Dated for Checkpoints {
    fn each_time(&mut self, change: &mut impl FnMut(&mut UnixTime)) {
        self.checkpoints.each_time(change);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Moves an answer in which every time is noon by an hour, and looks for what stayed.
    #[track_caller]
    fn check<T: Dated + serde::de::DeserializeOwned + std::fmt::Debug>(answer: &Value) {
        let mut answer: T = serde_json::from_value(answer.clone()).unwrap();
        let noon: UnixTime = "2026-01-01T12:00:00Z".parse().unwrap();
        let is_in = |time, text: &str| text.contains(&format!("{time:?}"));
        assert!(is_in(noon, &format!("{answer:?}")), "no time at all");
        let mut n_times = 0;
        answer.each_time(&mut |time| {
            *time = UnixTime::from_secs(time.as_secs() - 3_600);
            n_times += 1;
        });
        let moved = format!("{answer:?}");
        assert!(n_times > 0 && !is_in(noon, &moved), "{moved}");
    }

    #[test]
    fn no_time_of_an_answer_is_left_out() {
        let noon = "2026-01-01T12:00:00Z";
        let key = json!({"template": "t"});
        let reply = json!({"id": "sb_1", "token": "t", "deadline": noon});
        let row = json!({"id": "sb_1", "key": key, "hibernated": false, "deadline": noon, "claimed_at": noon});
        let checkpoint =
            json!({"id": "ck_1", "sandbox_id": "sb_1", "key": key, "created_at": noon});
        let template = json!({"key": key, "created_at": noon});
        check::<Claimed>(&reply);
        check::<Children>(&json!({"children": [reply, reply]}));
        check::<Renewed>(&json!({"deadline": noon}));
        check::<Sandboxes>(&json!({"sandboxes": [row, row]}));
        check::<Sandbox>(&row);
        check::<Stats>(
            &json!({"cpu_count": 1, "mem_total_bytes": 1, "mem_used_bytes": 1, "mem_used_measured": true,
            "hibernated": false, "measured_at": noon}),
        );
        check::<Info>(
            &json!({"pools": [], "claimed": 0, "hibernated": 0, "templates": [template, template]}),
        );
        check::<Checkpointed>(&json!({"checkpoint": checkpoint}));
        check::<Checkpoints>(&json!({"checkpoints": [checkpoint, checkpoint]}));
    }
}
