//! Keeps the records in agreement with what is owed.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use futures::StreamExt;
use kube::Client;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::record::{self, AT_ONCE};
use crate::{
    api::{ClaimId, NodeName},
    gateway::{Debts, Gateway},
    sequencer::Tenure,
    telemetry::Tasks,
};

/// What changes within this is written once, and what is paid within it not at all.
const SETTLES_WITHIN: Duration = Duration::from_millis(20);
/// Pauses after a failure, from and to.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];
/// How long the last record may take.
const FINISHES_WITHIN: Duration = Duration::from_secs(5);

/// What the inventories record as owed, by node.
pub type Recorded = HashMap<NodeName, BTreeSet<ClaimId>>;

/// The records of what nodes owe.
#[derive(Clone)]
pub struct Ledger {
    reader: Client,
    writer: Client,
    tenure: Tenure,
}

/// Records being kept.
#[derive(Debug, Default)]
pub struct Keeping {
    ending: CancellationToken,
    ended: CancellationToken,
}

impl Keeping {
    /// Records what is owed for the last time, which takes at most 5 s.
    pub async fn finish(self) {
        self.ending.cancel();
        if timeout(FINISHES_WITHIN, self.ended.cancelled())
            .await
            .is_err()
        {
            tracing::warn!("ending without a record of what nodes owe");
        }
    }
}

impl Ledger {
    /// The records in the inventories of the cluster. `writer` sends every request once, and nothing once `tenure` has ended:
    /// from then on the records are another's.
    pub fn new(reader: Client, writer: Client, tenure: Tenure) -> Self {
        Self {
            reader,
            writer,
            tenure,
        }
    }

    /// What an earlier life of this server recorded. Tries until kube-apiserver says; empty once `ending`.
    pub async fn recorded(&self, ending: &CancellationToken) -> Recorded {
        let [mut pause, longest] = PAUSES;
        loop {
            let read = ending.run_until_cancelled(record::read_all(&self.reader));
            match read.await {
                None => return Recorded::new(),
                Some(Ok(records)) => return records.into_iter().collect(),
                Some(Err(error)) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "what nodes owe cannot be read yet"
                    );
                }
            }
            ending.run_until_cancelled(sleep(pause)).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Makes the gateway owe what is recorded, and from then on records what it owes.
    ///
    /// To be called before the nodes are followed.
    pub fn keep(self, gateway: Gateway, recorded: Recorded, tasks: &mut Tasks) -> Keeping {
        for (node, claims) in &recorded {
            gateway.owe_still(node.clone(), claims.iter().cloned());
        }
        gateway.owed_written(gateway.owed().n_changes);
        let keeping = Keeping::default();
        let (ending, ended) = (keeping.ending.clone(), keeping.ended.clone().drop_guard());
        tasks.spawn("ledger", async move {
            let _ended = ended;
            self.follow(gateway, recorded, ending).await;
        });
        keeping
    }

    async fn follow(self, gateway: Gateway, mut recorded: Recorded, ending: CancellationToken) {
        let mut changes = gateway.owed_changes();
        let [least, longest] = PAUSES;
        let mut pause = least;
        loop {
            ending.run_until_cancelled(sleep(SETTLES_WITHIN)).await;
            // Read first: what is owed from here on is written in the last round or the next one.
            let is_last = ending.is_cancelled();
            if !self.tenure.holds() {
                return;
            }
            changes.mark_unchanged();
            let debts = gateway.owed();
            let complete = self.write(&debts, &mut recorded).await;
            if is_last {
                return;
            }
            if complete {
                pause = least;
                gateway.owed_written(debts.n_changes);
                ending.run_until_cancelled(changes.changed()).await;
            } else {
                // What is owed meanwhile on another node waits for none that refuses its record.
                let again = async {
                    tokio::select! {
                        () = sleep(pause) => {}
                        _ = changes.changed() => sleep(least).await,
                    }
                };
                ending.run_until_cancelled(again).await;
                pause = (pause * 2).min(longest);
            }
        }
    }

    /// Writes the records that are not as they ought to be. Whether all of them are now; never once the tenure is over.
    async fn write(&self, debts: &Debts, recorded: &mut Recorded) -> bool {
        let none = BTreeSet::new();
        let nodes: BTreeSet<_> = recorded
            .keys()
            .chain(debts.by_node.keys())
            .cloned()
            .collect();
        let owed = |node: &NodeName| debts.by_node.get(node).unwrap_or(&none);
        let differing = nodes
            .into_iter()
            .filter(|node| recorded.get(node).unwrap_or(&none) != owed(node));
        let differing: Vec<_> = differing.collect();
        // Looked at before each, at the last moment: a round may take long.
        let mine = differing.into_iter().take_while(|_| self.tenure.holds());
        let writes = mine.map(async |node| {
            let written = record::write(&self.writer, &node, owed(&node)).await;
            (node, written)
        });
        let mut writes = futures::stream::iter(writes).buffer_unordered(AT_ONCE);
        let mut complete = true;
        while let Some((node, written)) = writes.next().await {
            match (written, owed(&node)) {
                (Ok(()), claims) if claims.is_empty() => {
                    recorded.remove(&node);
                }
                (Ok(()), claims) => {
                    recorded.insert(node, claims.clone());
                }
                (Err(error), _) => {
                    complete = false;
                    tracing::warn!(%node, error = &error as &dyn std::error::Error, "what a node owes is not recorded yet");
                }
            }
        }
        complete && self.tenure.holds()
    }
}
