//! Connections that end so that their clients spread over replicas.

use sandbox_apiserver::store::Limits;

use crate::{
    harness::{ADMIN, Answer, mk_request},
    tls_client,
    widgets::{WIDGETS, Workshop},
};

/// Answers of which one surely ends its connection: 0.98^2000 is nothing.
const SURELY: usize = 2_000;

async fn mk_workshop() -> Workshop {
    Workshop::with(Limits::default(), "0.02".parse().unwrap()).await
}

#[tokio::test]
async fn some_answer_is_the_last_of_its_connection_and_watches_go_on() {
    let workshop = mk_workshop().await;
    workshop.put("a", "red");
    let path = format!("{WIDGETS}?watch=true");
    let mut watch = workshop.client.watch(&path).await;
    assert_eq!(watch.next().await, "ADDED a");
    let mut sender = workshop.client.sender();
    let mut n_answers = 0;
    while sender.ready().await.is_ok() {
        let request = mk_request(ADMIN, "GET", WIDGETS, &[], tls_client::empty());
        // One that came too late was not looked at, as GOAWAY says.
        let Ok(answer) = sender.send_request(request).await else {
            break;
        };
        assert_eq!(Answer::of(answer).await.code(), 200);
        n_answers += 1;
        assert!(n_answers < SURELY, "the connection stays");
    }
    assert!(n_answers > 0);
    workshop.put("b", "red");
    assert_eq!(watch.next().await, "ADDED b");
}

#[tokio::test]
async fn no_watch_ends_its_connection() {
    let workshop = mk_workshop().await;
    for _ in 0..500 {
        let path = format!("{WIDGETS}?watch=true");
        drop(workshop.client.watch(&path).await);
    }
}

#[tokio::test]
async fn without_a_chance_connections_stay() {
    let workshop = Workshop::open().await;
    for _ in 0..500 {
        assert_eq!(workshop.client.get(WIDGETS).await.code(), 200);
    }
}
