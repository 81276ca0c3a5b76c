//! WATCH over minutes and hours, on a clock that is turned by hand: what no client waits for in a test.

use std::{collections::BTreeSet, net::Ipv4Addr};

use http::Response;
use http_body_util::BodyExt;
use sandbox_apiserver::{
    apiserver::{Body, Builder, Entrance},
    serving::Connection,
    telemetry::Metrics,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    harness::{ADMIN, mk_request},
    tls_client,
    widgets::{WIDGETS, Workshop},
};

/// The same widgets, asked without a network, whose timeouts would turn the clock too.
struct Asked {
    workshop: Workshop,
    entrance: Entrance,
}

impl Asked {
    async fn open() -> Self {
        let workshop = Workshop::open().await;
        let builder = Builder {
            metrics: Metrics::new(),
            ..workshop.door.builder()
        };
        let entrance = Entrance::new(workshop.door.readiness.clone());
        entrance.open(builder.serve(workshop.widgets.clone()).unwrap());
        tokio::time::pause();
        Self { workshop, entrance }
    }

    async fn watch(&self, query: &str) -> Response<Body> {
        let path = format!("{WIDGETS}?watch=true&{query}");
        let request = mk_request(ADMIN, "GET", &path, &[], tls_client::empty());
        let connection = Connection::new((Ipv4Addr::LOCALHOST, 1).into(), Vec::new());
        let answer = self.entrance.clone().handle(connection, request).await;
        assert_eq!(answer.status(), 200);
        answer
    }
}

#[tokio::test]
async fn bookmarks_come_every_minute_and_two_seconds_before_the_end() {
    let asked = Asked::open().await;
    let from = asked.workshop.put("a", "red");
    let query = format!("allowWatchBookmarks=true&resourceVersion={from}&timeoutSeconds=200");
    let mut watch = asked.watch(&query).await;
    let begun = Instant::now();
    let mut seconds = Vec::new();
    while let Some(frame) = watch.frame().await {
        let event: Value = serde_json::from_slice(&frame.unwrap().into_data().unwrap()).unwrap();
        assert_eq!(event["type"], "BOOKMARK");
        assert_eq!(event["object"]["metadata"]["resourceVersion"], *from);
        seconds.push(begun.elapsed().as_secs());
    }
    assert_eq!(seconds, [60, 120, 180, 198]);
    assert_eq!(begun.elapsed().as_secs(), 200);
}

#[tokio::test]
async fn watches_without_a_timeout_end_after_half_an_hour_to_an_hour() {
    let asked = Asked::open().await;
    let mut all = BTreeSet::new();
    for query in ["", "timeoutSeconds=0"].into_iter().cycle().take(20) {
        let mut watch = asked.watch(query).await;
        let begun = Instant::now();
        assert!(watch.frame().await.is_none(), "it ends in order");
        all.insert(begun.elapsed().as_secs() / 60);
    }
    assert!(
        all.iter().all(|minutes| (30..=60).contains(minutes)),
        "{all:?}"
    );
    // Else a server that restarts would get all its watches back at once, again and again.
    assert!(all.len() > 3, "{all:?}");
}
