//! One listener's stream: the snapshot, then the changes, and signs of life.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    Use,
    board::{Place, Progress, Shared, line},
    wire::Message,
};
use crate::meta::UnixTime;

/// Time between two heartbeats, which come between changes too: they tell the clock. A listener takes ten seconds of silence
/// for the end.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// Bytes that are handed over at once.
const CHUNK: usize = 32 << 10;
/// Sandboxes whose use is told at once; a line of so many is shorter than any that a listener refuses.
const USES: usize = 500;

/// The listener did not keep up, and changes it has not seen are gone. Its stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the listener is too slow for the changes")]
pub struct Overtaken;

/// One listener's stream.
pub struct Listener {
    board: Arc<Shared>,
    progress: watch::Receiver<Progress>,
    heartbeat_at: Instant,
    stage: Stage,
    /// What the listener was last told of the daemon.
    told_answers: Option<bool>,
    /// The last use of a sandbox that it was told of.
    told_use: u64,
    _place: Place,
}

enum Stage {
    /// Nothing was said.
    Greeting { after: u64 },
    /// A look at the daemon that is later than `after` is awaited.
    Awaiting { after: u64 },
    /// The snapshot is on its way; its end and what follows it are `seq` and later.
    Telling {
        parts: std::vec::IntoIter<Bytes>,
        sandboxes: usize,
        seq: u64,
    },
    /// The next change is `next`.
    Following { next: u64 },
}

impl Listener {
    pub(super) fn new(board: Arc<Shared>, place: Place, after: u64) -> Self {
        Self {
            progress: board.progress.subscribe(),
            board,
            heartbeat_at: Instant::now() + HEARTBEAT,
            stage: Stage::Greeting { after },
            told_answers: None,
            told_use: 0,
            _place: place,
        }
    }

    /// The stream as the body of an answer. It ends with the board, and with an error when the listener is too slow.
    pub fn into_body(self) -> impl http_body::Body<Data = Bytes, Error = Overtaken> + Send {
        StreamBody::new(futures::stream::unfold(Some(self), async |listener| {
            let mut listener = listener?;
            match listener.next().await? {
                Ok(lines) => Some((Ok(Frame::data(lines)), Some(listener))),
                Err(overtaken) => Some((Err(overtaken), None)),
            }
        }))
    }

    /// The next lines; `None` when the board is closed.
    pub async fn next(&mut self) -> Option<Result<Bytes, Overtaken>> {
        loop {
            let progress = *self.progress.borrow_and_update();
            if progress.closed {
                return None;
            }
            if self.heartbeat_at <= Instant::now() {
                self.told_answers = None;
            }
            if let Some(said) = self.say(progress) {
                return Some(said);
            }
            if let Ok(Err(_)) = timeout_at(self.heartbeat_at, self.progress.changed()).await {
                return None;
            }
        }
    }

    /// What there is to say now.
    fn say(&mut self, progress: Progress) -> Option<Result<Bytes, Overtaken>> {
        match &mut self.stage {
            Stage::Greeting { after } => {
                let hello = Message::Hello {
                    epoch: self.board.epoch,
                    seq: progress.seq,
                };
                self.stage = Stage::Awaiting { after: *after };
                Some(Ok(line(&hello)))
            }
            Stage::Awaiting { after } if progress.polled > *after => {
                let snapshot = self.board.snapshot();
                self.stage = Stage::Telling {
                    parts: snapshot.parts.into_iter(),
                    sandboxes: snapshot.sandboxes,
                    seq: snapshot.seq,
                };
                self.say(progress)
            }
            Stage::Awaiting { .. } => self.heartbeat(progress.seq, progress, Vec::new()).map(Ok),
            Stage::Telling {
                parts,
                sandboxes,
                seq,
            } => {
                let (lines, seq, sandboxes) = (chunk(parts), *seq, *sandboxes);
                if !lines.is_empty() {
                    return Some(Ok(lines));
                }
                self.stage = Stage::Following { next: seq + 1 };
                Some(Ok(line(&Message::SnapshotEnd { seq, sandboxes })))
            }
            Stage::Following { next } if progress.seq >= *next => {
                let Some(lines) = self.board.changes(*next, CHUNK) else {
                    return Some(Err(Overtaken));
                };
                *next += lines.len() as u64;
                Some(Ok(lines.concat().into()))
            }
            Stage::Following { next } => {
                let seq = *next - 1;
                // Behind the changes: every sandbox that is used was told of before.
                let (told, uses) = self.board.uses.lock().after(self.told_use, USES);
                self.told_use = told;
                self.heartbeat(seq, progress, uses).map(Ok)
            }
        }
    }

    /// A heartbeat, if one is due or what it says of the daemon is new, or to tell what sandboxes use.
    fn heartbeat(&mut self, seq: u64, progress: Progress, uses: Vec<Use>) -> Option<Bytes> {
        let daemon_answers = progress.daemon_answers;
        let is_known = self.told_answers.replace(daemon_answers) == Some(daemon_answers);
        if is_known && uses.is_empty() {
            return None;
        }
        self.heartbeat_at = Instant::now() + HEARTBEAT;
        Some(line(&Message::Heartbeat {
            seq,
            daemon_answers,
            clock: Some(progress.clock.theirs(UnixTime::now())),
            uses,
        }))
    }
}

/// The next parts as lines, about [`CHUNK`] bytes of them; empty at the end.
fn chunk(parts: &mut std::vec::IntoIter<Bytes>) -> Bytes {
    let mut lines = BytesMut::new();
    while lines.len() < CHUNK {
        let Some(part) = parts.next() else { break };
        lines.extend_from_slice(br#"{"part":"#);
        lines.extend_from_slice(&part);
        lines.extend_from_slice(b"}\n");
    }
    lines.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{ClaimId, PoolKey, UserPart},
        feed::{Board, NodeState, Row, State},
        sandboxd::NodeTime,
    };

    fn mk_row(id: &str, seconds: i64) -> Row {
        Row {
            id: id.into(),
            claim_ref: "".into(),
            state: State::Running,
            deadline: Some(NodeTime::told(UnixTime::from_secs(seconds))),
            claimed_at: None,
            pool: PoolKey {
                template: "t".into(),
                net: "none".into(),
                size: "small".into(),
            },
            from_checkpoint: None,
            metadata: Default::default(),
        }
    }

    fn poll(board: &Board, rows: Vec<Row>) {
        let poll = board.poll_begins();
        board.polled(
            &poll,
            rows,
            NodeState::default(),
            NodeTime::told(UnixTime::from_secs(0)),
            |_| None,
        );
    }

    /// The kinds of the lines that are said next: the first word of each.
    async fn said(listener: &mut Listener) -> String {
        let lines = listener.next().await.unwrap().unwrap();
        let text = String::from_utf8(lines.to_vec()).unwrap();
        let kind = |line: &str| line.split('"').nth(1).unwrap_or_default().to_owned();
        text.lines().map(kind).collect::<Vec<_>>().join(" ")
    }

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_waits_for_a_look_that_began_after_the_question() {
        let board = Board::new();
        poll(&board, vec![mk_row("sb_1", 1)]);
        let under_way = board.poll_begins();
        let mut listener = board.listen().unwrap();
        assert_eq!(said(&mut listener).await, "hello");
        assert_eq!(said(&mut listener).await, "heartbeat");
        board.polled(
            &under_way,
            vec![],
            NodeState::default(),
            NodeTime::told(UnixTime::from_secs(0)),
            |_| None,
        );
        let early = tokio::time::timeout(HEARTBEAT / 2, listener.next()).await;
        assert!(early.is_err(), "{early:?}");
        poll(&board, vec![mk_row("sb_1", 1), mk_row("sb_2", 1)]);
        assert_eq!(said(&mut listener).await, "part part part");
        assert_eq!(said(&mut listener).await, "snapshotEnd");
        poll(&board, vec![mk_row("sb_1", 2), mk_row("sb_2", 1)]);
        let told = listener.next().await.unwrap().unwrap();
        let told = String::from_utf8(told.to_vec()).unwrap();
        // What the node has comes with it: a claim lowers it, and a refill is not seen when it is as quick as the look.
        let kinds = told.lines().map(|line| line.split('"').nth(7).unwrap());
        assert_eq!(kinds.collect::<Vec<_>>(), ["sandbox", "node"], "{told}");
        assert_eq!(said(&mut listener).await, "heartbeat");
        poll(&board, vec![mk_row("sb_1", 2), mk_row("sb_2", 1)]);
        let silence = tokio::time::timeout(HEARTBEAT / 2, listener.next()).await;
        assert!(
            silence.is_err(),
            "what is as it was is no change: {silence:?}"
        );
        // As is a claim that has come and gone between two looks.
        tokio::time::advance(Duration::from_secs(10)).await;
        poll(&board, vec![mk_row("sb_1", 2), mk_row("sb_2", 1)]);
        assert_eq!(said(&mut listener).await, "change");
        assert_eq!(said(&mut listener).await, "heartbeat");
        board.poll_failed();
        assert_eq!(said(&mut listener).await, "heartbeat");
        board.close();
        assert!(listener.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeats_come_between_changes_and_tell_the_clock() {
        let board = Board::new();
        let mut listener = board.listen().unwrap();
        let mut told = String::new();
        for n in 0..10 {
            poll(&board, vec![mk_row("sb_1", n)]);
            let moment = Duration::from_millis(1);
            while let Ok(said) = tokio::time::timeout(moment, listener.next()).await {
                told.push_str(std::str::from_utf8(&said.unwrap().unwrap()).unwrap());
            }
            tokio::time::advance(HEARTBEAT / 3).await;
        }
        let heartbeats = told.lines().filter(|line| line.contains("heartbeat"));
        let heartbeats: Vec<_> = heartbeats.collect();
        assert!((3..=5).contains(&heartbeats.len()), "{told}");
        let tells_clock = |line: &&str| line.contains(r#""clock":"20"#);
        assert!(heartbeats.iter().all(tells_clock), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_sandboxes_use_rides_on_a_heartbeat_behind_their_row() {
        let board = Board::new();
        let mut listener = board.listen().unwrap();
        let used = |id: &str, used: u64| Use {
            id: id.into(),
            cpu_count: 1,
            mem_total_bytes: 9,
            mem_used_bytes: Some(used),
        };
        board.used(used("sb_1", 1));
        poll(&board, vec![mk_row("sb_1", 1)]);
        let mut lines = Vec::new();
        let mut tell = async |n: usize| {
            lines.clear();
            for _ in 0..n {
                lines.push(listener.next().await.unwrap().unwrap());
            }
            String::from_utf8(lines.concat()).unwrap()
        };
        let told = tell(4).await;
        let snapshot = told.find("snapshotEnd").unwrap();
        let use_told = told.find(r#""uses":[{"id":"sb_1""#).unwrap();
        assert!(snapshot < use_told, "{told}");
        assert_eq!(told.matches("uses").count(), 1, "{told}");
        let seq = board.seq();
        board.used(used("sb_1", 1));
        assert!(!tell(1).await.contains("uses"), "as it was");
        board.used(used("sb_1", 2));
        assert!(tell(1).await.contains(r#""memUsedBytes":2"#));
        assert_eq!(board.seq(), seq, "it is no change");
    }

    #[tokio::test]
    async fn a_change_of_the_users_part_is_told_alone_and_once() {
        let (board, user) = (Board::new(), Arc::new(UserPart::default()));
        let mut listener = board.listen().unwrap();
        poll(&board, vec![mk_row("sb_1", 1)]);
        while said(&mut listener).await != "snapshotEnd" {}
        let user_of = |_: &ClaimId| Some(user.clone());
        board.user_changed(&"sb_1".into(), user_of);
        board.user_changed(&"sb_1".into(), user_of);
        board.user_changed(&"sb_2".into(), user_of);
        let told = listener.next().await.unwrap().unwrap();
        let told = String::from_utf8(told.to_vec()).unwrap();
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(told.contains(r#""rowRepeats":true"#), "{told}");
        // Who comes later hears of the sandbox as a whole.
        let mut later = board.listen().unwrap();
        let looked = board.poll_begins();
        let (rows, at) = (
            vec![mk_row("sb_1", 1)],
            NodeTime::told(UnixTime::from_secs(0)),
        );
        board.polled(&looked, rows, NodeState::default(), at, user_of);
        let mut told = String::new();
        while !told.contains("snapshotEnd") {
            let lines = later.next().await.unwrap().unwrap();
            told.push_str(std::str::from_utf8(&lines).unwrap());
        }
        assert!(told.contains(r#""generation":0"#) && !told.contains("rowRepeats"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_that_the_changes_overtake_is_cut() {
        let board = Board::new();
        let (mut slow, mut fast) = (board.listen().unwrap(), board.listen().unwrap());
        poll(&board, vec![]);
        for listener in [&mut slow, &mut fast] {
            while said(listener).await != "snapshotEnd" {}
        }
        for n in 0..20_000 {
            poll(&board, vec![mk_row("sb_1", n)]);
            if n % 100 == 0 {
                assert!(fast.next().await.unwrap().is_ok());
            }
        }
        while let Some(said) = slow.next().await {
            match said {
                Ok(lines) => assert!(lines.starts_with(b"{\"heartbeat\""), "{lines:?}"),
                Err(Overtaken) => return,
            }
        }
        panic!("the feed ended in order");
    }

    #[tokio::test]
    async fn listeners_are_few_and_leave_their_place() {
        let board = Board::new();
        let mut listeners: Vec<_> = std::iter::from_fn(|| board.listen()).take(100).collect();
        assert_eq!(board.listeners(), listeners.len());
        assert!(board.listen().is_none());
        listeners.pop();
        assert!(board.listen().is_some());
    }
}
