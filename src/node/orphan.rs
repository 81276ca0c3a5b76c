//! What an earlier life of the agent handed over and did not record.
//!
//! The daemon's own list is the record of deliveries: it carries the gateway's mark, which names the claim itself, so that neither
//! a sandbox made with `kubectl create` nor a fork is ever taken for one. Each marked sandbox that this life knows nothing of is
//! looked up once, by its name; nothing is listed in the cluster, and nothing is ever released here.

use std::time::Duration;

use rand::Rng;
use tokio::time::sleep;

use super::gateway::{Gateway, Owed};
use crate::{
    api::{NodeName, labels},
    feed::Board,
};

/// Time between two looks at what the daemon lists.
const ROUND: Duration = Duration::from_secs(1);
/// Orphans are taken in only while less than this waits for its first attempt: agents that start together ask kube-apiserver for
/// some objects each, and what is handed over now comes first. What failed is not counted: it may fail for as long as it lives.
const MOST_OWED: usize = 16;

/// Never ends.
pub(super) async fn adopt_orphans(gateway: Gateway, board: Board, node: NodeName) {
    loop {
        let jitter = rand::rng().random_range(0.5..1.5);
        sleep(ROUND.mul_f64(jitter)).await;
        let marked = board.marked(labels::HANDED_OVER);
        let owed = marked.iter().filter_map(|row| Owed::of_row(row, &node));
        gateway.adopt(owed.collect(), MOST_OWED);
    }
}
