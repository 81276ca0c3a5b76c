//! The same, fed by the watches of a cluster that is not always well.

use sandbox_apiserver::sim::Planted;

use super::{Bench, Setting, eventually, mk_pool};
use crate::fake_cluster::Cluster;

/// A follower of a cluster's own watches.
async fn following(cluster: &Cluster) -> Bench {
    let bench = Bench::new(Setting {
        cluster: Some(cluster.client()),
        ..Setting::default()
    })
    .await;
    for node in bench.sim.nodes() {
        cluster.apply(
            node.name().as_str(),
            serde_json::to_value(node.inventory()).unwrap(),
        );
    }
    bench
}

#[tokio::test]
async fn a_clusters_watch_feeds_the_index() {
    let cluster = Cluster::start().await;
    let bench = following(&cluster).await;
    bench.ready().await;
    eventually("all are listed", || bench.names().len() == 6).await;
    let node = bench.node(0);
    node.plant(Planted::new("team/new", mk_pool()));
    cluster.apply(
        node.name().as_str(),
        serde_json::to_value(node.inventory()).unwrap(),
    );
    eventually("the new one is listed", || bench.names().len() == 7).await;
    cluster.delete(node.name().as_str());
    eventually("its node is forgotten", || bench.names().len() == 3).await;
}

#[tokio::test]
async fn a_cluster_that_does_not_stream_lists_is_listed_in_pages() {
    let cluster = Cluster::start().await;
    cluster.change(|rules| rules.streams_lists = false);
    let bench = following(&cluster).await;
    bench.ready().await;
    eventually("all are listed", || bench.names().len() == 6).await;
}

// TencentCloud/CubeSandbox#933
#[tokio::test]
async fn without_the_right_to_read_the_server_is_not_ready_and_later_keeps_what_it_knows() {
    let cluster = Cluster::start().await;
    cluster.change(|rules| rules.forbidden = true);
    let bench = following(&cluster).await;
    eventually("the refusal is counted", || {
        bench.metric("watch_interruptions_total{kind=\"NodeInventory\"}") >= 2.0
    })
    .await;
    assert!(!bench.readiness.is_ready());
    cluster.change(|rules| rules.forbidden = false);
    bench.ready().await;
    eventually("all are listed", || bench.names().len() == 6).await;

    let version = bench.fleet.store().head();
    let interruptions = bench.metric("watch_interruptions_total");
    cluster.change(|rules| rules.forbidden = true);
    cluster.cut();
    eventually("the refusal is counted", || {
        bench.metric("watch_interruptions_total") >= interruptions + 2.0
    })
    .await;
    assert_eq!(
        (bench.changes(version).as_str(), bench.readiness.is_ready()),
        ("", true)
    );
}

#[tokio::test]
async fn a_new_list_forgets_who_is_gone_but_not_who_it_merely_left_out() {
    let cluster = Cluster::start().await;
    let bench = following(&cluster).await;
    bench.ready().await;
    eventually("all are listed", || bench.names().len() == 6).await;
    let (stays, goes) = (bench.node(0).name(), bench.node(1).name());
    cluster.change(|rules| rules.left_out = Some(stays.to_string()));
    cluster.delete_unseen(goes.as_str());
    cluster.expire();
    cluster.cut();
    eventually("one is forgotten", || bench.names().len() == 3).await;
    assert!(bench.fleet.address(stays).is_some() && bench.fleet.address(goes).is_none());
}

#[tokio::test]
async fn whether_one_is_gone_is_asked_until_it_is_known() {
    let cluster = Cluster::start().await;
    let bench = following(&cluster).await;
    bench.ready().await;
    eventually("all are listed", || bench.names().len() == 6).await;
    cluster.change(|rules| rules.fails = 1);
    cluster.delete_unseen(bench.node(1).name().as_str());
    cluster.expire();
    cluster.cut();
    eventually("it is asked in vain", || cluster.fails() == 0).await;
    // The watch goes on meanwhile.
    let node = bench.node(0);
    node.plant(Planted::new("team/new", mk_pool()));
    cluster.apply(
        node.name().as_str(),
        serde_json::to_value(node.inventory()).unwrap(),
    );
    eventually("the next one is taken", || bench.names().len() == 7).await;
    eventually("one is forgotten", || bench.names().len() == 4).await;
}

#[tokio::test]
async fn an_object_that_cannot_be_read_costs_no_other() {
    let cluster = Cluster::start().await;
    let bench = following(&cluster).await;
    bench.ready().await;
    cluster.say(r#"{"type":"MODIFIED","object":{"metadata":{"name":"x","name":"y","resourceVersion":"9"}}}"#);
    let node = bench.node(0);
    node.plant(Planted::new("team/new", mk_pool()));
    cluster.apply(
        node.name().as_str(),
        serde_json::to_value(node.inventory()).unwrap(),
    );
    eventually("the next one is taken", || bench.names().len() == 7).await;
    assert_eq!(
        bench.metric("rejected_publications_total{reason=\"undecodable\"}"),
        1.0
    );
    let listed = bench.fleet.store().get("team", "new").unwrap();
    assert_eq!(listed.value.node, *node.name());
    let address = bench.fleet.address(node.name());
    assert_eq!(address.as_ref(), Some(node.address()));
}
