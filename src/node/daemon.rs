//! The daemon beside the agent, read again and again.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use tokio::time::{sleep, timeout};

use super::{NodeMetrics, Objects, Options, usage};
use crate::{
    api::{ClaimId, NodeAddress},
    feed::{Board, NodeState, Pool, Row, State},
    sandboxd::{self, Client, Info, NodeTime, SandboxRow},
    telemetry::Check,
};

/// A new listener makes the next look come at once, but not sooner than this after the last.
const WANTED_APART: Duration = Duration::from_millis(25);
/// A look may take one part in so many of the time.
const POLL_SHARE: u32 = 10;
/// Longest pause while somebody listens, however long a look takes.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How long the loop waits for the disk to forget objects: while it does, the daemon is not looked at.
const SWEEP_WITHIN: Duration = Duration::from_secs(1);
/// Pause after a failed look.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// Reads the daemon and tells the board.
pub(super) struct Reader {
    pub(super) client: Client,
    pub(super) address: NodeAddress,
    pub(super) board: Board,
    pub(super) objects: Objects,
    pub(super) options: Options,
    pub(super) metrics: NodeMetrics,
    /// Passes while the daemon answers.
    pub(super) check: Check,
    /// Passes while what users send reaches the disk.
    pub(super) disk: Check,
}

impl Reader {
    /// Never ends.
    pub(super) async fn run(self) {
        let mut answered = true;
        loop {
            let began = Instant::now();
            let outcome = self.look().await;
            let took = began.elapsed();
            self.metrics.polled(took, outcome.is_ok());
            self.metrics.listeners(self.board.listeners());
            self.report(&outcome, &mut answered);
            if let Ok(listed) = outcome {
                self.sweep(&listed).await;
            }
            self.report_disk();
            let pause = pause(&self.options, self.board.listeners(), took, answered);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.board.poll_wanted() => sleep(WANTED_APART).await,
            }
        }
    }

    /// Looks at the daemon and tells the board. Gives the claims that it lists.
    async fn look(&self) -> sandboxd::Result<HashSet<ClaimId>> {
        let poll = self.board.poll_begins();
        let node = self.client.node(&self.address, self.options.poll_within);
        let (rows, info) = tokio::try_join!(node.sandboxes(), node.info())?;
        let listed: HashSet<ClaimId> = rows.iter().map(|row| row.id.clone()).collect();
        let sizes: Vec<_> = rows.iter().filter_map(usage::size_of).collect();
        let rows = rows.into_iter().map(row).collect();
        let user_of = |claim: &ClaimId| self.objects.get(claim);
        let observed_at = self.client.node_time(&self.address);
        let offset = self.client.clock_offset(&self.address);
        self.board.set_clock(offset.unwrap_or_default());
        self.board
            .polled(&poll, rows, node_state(info), observed_at, user_of);
        for size in sizes {
            self.board.sized(size);
        }
        Ok(listed)
    }

    /// Forgets the objects of sandboxes that are gone. A disk that stalls is left to it, and asked again after the next look.
    async fn sweep(&self, listed: &HashSet<ClaimId>) {
        let keep = self.options.keep_absent;
        let swept = self.objects.sweep(listed, keep, Instant::now());
        if let Ok(Err(error)) = timeout(SWEEP_WITHIN, swept).await {
            tracing::error!(%error, "objects of sandboxes that are gone cannot be forgotten");
        }
    }

    fn report_disk(&self) {
        match self.objects.trouble(Instant::now()) {
            Some(trouble) if self.disk.passes() => {
                tracing::error!(trouble, "what users send is not kept");
                self.disk.fail(trouble);
            }
            Some(_) => {}
            None => self.disk.pass(),
        }
    }

    fn report<T>(&self, outcome: &sandboxd::Result<T>, answered: &mut bool) {
        let before = std::mem::replace(answered, outcome.is_ok());
        match outcome {
            Ok(_) => {
                self.check.pass();
                if !before {
                    tracing::info!("the daemon answers again");
                }
            }
            Err(error) => {
                self.board.poll_failed();
                self.check.fail(error.to_string());
                if before {
                    let error = error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        "the daemon does not answer: what it has stays as it was"
                    );
                }
            }
        }
    }
}

fn pause(options: &Options, listeners: usize, took: Duration, answered: bool) -> Duration {
    let apart = match listeners {
        0 => options.idle_poll_apart,
        _ => options.poll_apart,
    };
    let share = (took * (POLL_SHARE - 1)).min(MAX_PAUSE);
    let failed = if answered {
        Duration::ZERO
    } else {
        FAILED_PAUSE
    };
    apart.max(share).max(failed)
}

fn row(row: SandboxRow) -> Row {
    let state = match &row {
        row if row.failed.is_some() => State::Failed,
        row if row.archived => State::Archived,
        row if row.hibernated => State::Hibernated,
        _ => State::Running,
    };
    Row {
        id: row.id,
        claim_ref: row.claim_ref,
        state,
        deadline: row.deadline.map(NodeTime::told),
        claimed_at: row.claimed_at.map(NodeTime::told),
        pool: row.key,
        from_checkpoint: row.from_checkpoint.map(|id| id.as_str().into()),
        metadata: row.metadata,
    }
}

fn node_state(info: Info) -> NodeState {
    let draining = info.draining;
    let pools = info.into_pools().into_iter().map(|pool| Pool {
        key: pool.key,
        warm: pool.warm,
        target: pool.target,
    });
    let mut pools: Vec<_> = pools.collect();
    pools.sort_by(|one, other| one.key.cmp(&other.key));
    NodeState { pools, draining }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::Token,
        sandboxd::{ClientOptions, TokenSource},
        telemetry::Readiness,
    };

    #[tokio::test(start_paused = true)]
    async fn a_stalled_disk_holds_no_look_up() {
        let (objects, _unwritten) = Objects::stalled(&["sb_1".into()]);
        let readiness = Readiness::new();
        let reader = Reader {
            client: Client::new(ClientOptions {
                token: TokenSource::Fixed(Token::from("t".to_owned())),
                ca_file: None,
            })
            .unwrap(),
            address: "127.0.0.1:1".parse().unwrap(),
            board: Board::new(),
            objects,
            options: Options {
                keep_absent: Duration::ZERO,
                ..Options::default()
            },
            metrics: NodeMetrics::default(),
            check: readiness.check("daemon"),
            disk: readiness.check("disk"),
        };
        for _ in 0..300 {
            let none = HashSet::new();
            let swept = timeout(SWEEP_WITHIN * 2, reader.sweep(&none));
            swept.await.expect("the next look can come");
        }
    }

    #[track_caller]
    fn pauses(listeners: usize, took_ms: u64, answered: bool, expected_ms: u64) {
        let took = Duration::from_millis(took_ms);
        let found = pause(&Options::default(), listeners, took, answered);
        assert_eq!(found, Duration::from_millis(expected_ms));
    }

    #[test]
    fn the_daemon_is_read_as_often_as_somebody_listens_and_as_it_is_cheap() {
        pauses(0, 1, true, 10_000);
        pauses(1, 1, true, 250);
        pauses(1, 100, true, 900);
        pauses(1, 4_000, true, 5_000);
        pauses(1, 1, false, 1_000);
    }
}
