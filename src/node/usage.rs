//! What the sandboxes of the node use, asked of its daemon one by one.
//!
//! The daemon tells it of one sandbox at a time, and tells memory only. Each running sandbox is asked about once a minute, at
//! moments of its own: a hundred of them cost the daemon two calls a second. A daemon without the route is left alone until it
//! has been away, since another one may have taken its place.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use rand::Rng as _;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::NodeMetrics;
use crate::{
    api::{ClaimId, NodeAddress, PoolKey},
    feed::{Board, Use},
    sandboxd::{Client, Error, SandboxRow},
};

/// Longest pause between two looks at what is to be asked.
const TICK: Duration = Duration::from_secs(1);
/// Questions of one tick, and those that are under way at once.
const A_TICK: usize = 50;
const AT_ONCE: usize = 4;
/// How long the daemon may take for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Asks the daemon and tells the board.
pub(super) struct Sampler {
    pub(super) client: Client,
    pub(super) address: NodeAddress,
    pub(super) board: Board,
    /// Shortest time from one question about a sandbox to the next.
    pub(super) apart: Duration,
    pub(super) metrics: NodeMetrics,
}

/// When which sandbox is to be asked about.
struct Plan {
    apart: Duration,
    due: HashMap<ClaimId, Instant>,
    /// The daemon does not know the question.
    unknown: bool,
}

impl Sampler {
    /// Never ends.
    pub(super) async fn run(self) {
        let (mut plan, mut ticks) = (Plan::new(self.apart), interval(TICK.min(self.apart)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let running = self.board.running();
            plan.unknown &= self.board.daemon_answers();
            if !plan.unknown && self.board.daemon_answers() {
                let due = plan.due(&running, Instant::now(), jitter);
                plan.unknown = self.ask(due).await;
            }
            self.metrics.memory_used(self.by_pool(&running));
        }
    }

    /// Asks about some. Whether the daemon does not know the question.
    async fn ask(&self, claims: Vec<ClaimId>) -> bool {
        let answers = claims.into_iter().map(|claim| self.ask_one(claim));
        let answers = stream::iter(answers).buffer_unordered(AT_ONCE);
        answers.any(async |unknown| unknown).await
    }

    async fn ask_one(&self, claim: ClaimId) -> bool {
        let daemon = self.client.node(&self.address, ANSWER_WITHIN);
        match daemon.stats(&claim).await {
            Ok(stats) => {
                self.board.used(Use {
                    id: claim,
                    cpu_count: stats.cpu_count,
                    mem_total_bytes: stats.mem_total_bytes,
                    mem_used_bytes: stats.mem_used_measured.then_some(stats.mem_used_bytes),
                });
                false
            }
            Err(Error::RouteMissing) => true,
            // It is gone, or the daemon is busy: the next look tells.
            Err(_) => false,
        }
    }

    fn by_pool(&self, running: &[(ClaimId, PoolKey)]) -> BTreeMap<PoolKey, u64> {
        let mut by_pool = BTreeMap::<_, u64>::new();
        for (claim, pool) in running {
            if let Some(used) = self.board.memory_used(claim) {
                let sum = by_pool.entry(pool.clone()).or_default();
                *sum = sum.saturating_add(used);
            }
        }
        by_pool
    }
}

impl Plan {
    fn new(apart: Duration) -> Self {
        Self {
            apart,
            due: HashMap::new(),
            unknown: false,
        }
    }

    /// The sandboxes to ask about now, the longest due first. A new one is asked about within a sixth of the time that it then
    /// rests, each at a moment of its own.
    fn due(
        &mut self,
        running: &[(ClaimId, PoolKey)],
        now: Instant,
        jitter: impl Fn(Duration) -> Duration,
    ) -> Vec<ClaimId> {
        let mut known = std::mem::take(&mut self.due);
        for (claim, _) in running {
            let due = known.remove(claim);
            let due = due.unwrap_or_else(|| now + jitter(self.apart / 6));
            self.due.insert(claim.clone(), due);
        }
        let mut due: Vec<_> = self.due.iter().filter(|(_, due)| **due <= now).collect();
        due.sort_unstable_by_key(|(_, due)| **due);
        let due: Vec<ClaimId> = due
            .into_iter()
            .take(A_TICK)
            .map(|(id, _)| id.clone())
            .collect();
        for claim in &due {
            let rest = self.apart + jitter(self.apart / 3);
            self.due.insert(claim.clone(), now + rest);
        }
        due
    }
}

/// What a daemon that tells the size of its sandboxes says of one.
pub(super) fn size_of(row: &SandboxRow) -> Option<Use> {
    Some(Use {
        id: row.id.clone(),
        cpu_count: row.cpu_count?,
        mem_total_bytes: row.mem_total_bytes?,
        mem_used_bytes: None,
    })
}

fn jitter(most: Duration) -> Duration {
    most.mul_f64(rand::rng().random::<f64>())
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::{
        api::Token,
        feed::{NodeState, Row, State},
        meta::UnixTime,
        sandboxd::{ClientOptions, NodeTime, TokenSource},
    };

    const MINUTE: Duration = Duration::from_secs(60);

    fn mk_running(count: usize) -> Vec<(ClaimId, PoolKey)> {
        let pool = PoolKey {
            template: "t".into(),
            net: "none".into(),
            size: "small".into(),
        };
        let ids = (0..count).map(|n| format!("sb_{n}").as_str().into());
        ids.map(|id| (id, pool.clone())).collect()
    }

    #[test]
    fn each_is_asked_about_once_a_minute_and_few_in_a_second() {
        let (mut plan, running) = (Plan::new(MINUTE), mk_running(2_000));
        let (begun, seconds) = (Instant::now(), 600);
        let mut asked: HashMap<ClaimId, Vec<u64>> = HashMap::new();
        for second in 0..seconds {
            let now = begun + Duration::from_secs(second);
            let due = plan.due(&running, now, super::jitter);
            assert!(due.len() <= A_TICK, "{}", due.len());
            for claim in due {
                asked.entry(claim).or_default().push(second);
            }
        }
        assert_eq!(asked.len(), running.len());
        for times in asked.values() {
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 60));
            assert!(times.len() as u64 >= seconds / 90, "{times:?}");
        }
    }

    /// A daemon that knows no route, and the number of requests that it got.
    async fn mk_old_daemon() -> (NodeAddress, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let mut request = [0; 4_096];
                let _ = stream.read(&mut request).await;
                let answer = b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 19\r\n\r\n404 page not found\n";
                let _ = stream.write_all(answer).await;
            }
        });
        (address.parse().unwrap(), asked)
    }

    #[tokio::test]
    async fn a_daemon_that_does_not_know_the_question_is_not_asked_again_until_it_was_away() {
        let (address, asked) = mk_old_daemon().await;
        let board = Board::new();
        let listed = |board: &Board| {
            let row = Row {
                id: "sb_1".into(),
                claim_ref: "".into(),
                state: State::Running,
                deadline: None,
                claimed_at: None,
                pool: mk_running(1).remove(0).1,
                from_checkpoint: None,
                metadata: BTreeMap::new(),
            };
            let (poll, now) = (board.poll_begins(), NodeTime::told(UnixTime::from_secs(0)));
            board.polled(&poll, vec![row], NodeState::default(), now, |_| None);
        };
        listed(&board);
        let sampler = Sampler {
            client: Client::new(ClientOptions {
                token: TokenSource::Fixed(Token::from("t".to_owned())),
                ca_file: None,
            })
            .unwrap(),
            address,
            board: board.clone(),
            apart: Duration::from_millis(5),
            metrics: NodeMetrics::default(),
        };
        let _running = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(sampler.run()));
        let until_asked = async |times: usize| {
            while asked.load(Ordering::Relaxed) < times {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        until_asked(1).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        board.poll_failed();
        tokio::time::sleep(Duration::from_millis(50)).await;
        listed(&board);
        until_asked(2).await;
    }

    #[test]
    fn who_does_not_run_any_more_is_forgotten() {
        let (mut plan, now) = (Plan::new(MINUTE), Instant::now());
        plan.due(&mk_running(3), now, |_| Duration::ZERO);
        let later = now + MINUTE * 2;
        assert_eq!(plan.due(&mk_running(1), later, |most| most).len(), 1);
        assert_eq!(plan.due.len(), 1);
    }
}
