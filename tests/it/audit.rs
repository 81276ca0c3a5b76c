//! The line that every request leaves in the log.

use std::{
    io::{self, Write},
    sync::{Arc, Once},
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::subscriber::DefaultGuard;

use crate::{
    harness::{ALICE, Cluster, mk_node, until},
    widgets::{WIDGETS, Workshop},
};

/// After which a call counts as one that hangs.
const HANGS: Duration = Duration::from_millis(300);

/// What is logged on this thread, on which the test's server runs as well.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<u8>>>);

impl Write for Journal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Journal {
    fn open() -> (Self, DefaultGuard) {
        // Whether anybody listens to a line is remembered for all threads. Somebody who always does keeps it from being
        // forgotten when the journal of another test, on another thread, is closed at this moment.
        static LISTENER: Once = Once::new();
        LISTENER.call_once(|| {
            let listener = tracing_subscriber::fmt()
                .with_env_filter("audit=info")
                .with_writer(io::sink)
                .finish();
            tracing::subscriber::set_global_default(listener).unwrap();
        });
        let journal = Self::default();
        let writer = journal.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_env_filter("audit=info")
            .with_writer(move || writer.clone())
            .finish();
        (journal, tracing::subscriber::set_default(subscriber))
    }

    /// The fields of each line about `name`.
    fn about(&self, name: &str) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let fields = lines.map(|line: Value| line["fields"].clone());
        fields.filter(|fields| fields["name"] == name).collect()
    }
}

#[tokio::test]
async fn both_users_and_their_groups_are_named() {
    let (journal, _guard) = Journal::open();
    let workshop = Workshop::open().await;
    let alice = workshop.door.client(ALICE).await;
    let path = format!("{WIDGETS}/a");
    let impersonation = [("impersonate-user", "bob"), ("impersonate-group", "ops")];
    alice.get(&path).await;
    alice.request("GET", &path, &impersonation, "").await;

    let lines = journal.about("a");
    let [plain, impersonating] = &lines[..] else {
        panic!("{lines:#?}");
    };
    for line in [plain, impersonating] {
        assert_eq!(
            (
                &line["user"],
                &line["groups"],
                &line["stage"],
                &line["code"]
            ),
            (
                &json!("alice"),
                &json!(r#"["system:authenticated"]"#),
                &json!("answered"),
                &json!(404)
            )
        );
    }
    assert_eq!(plain.get("impersonated_user"), None);
    assert_eq!(impersonating["impersonated_user"], "bob");
    assert_eq!(
        impersonating["impersonated_groups"],
        r#"["ops", "system:authenticated"]"#
    );
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_a_line() {
    let (journal, _guard) = Journal::open();
    let workshop = Workshop::open().await;
    workshop.put("hangs", "red");
    let client = workshop.door.client(ALICE).await;
    let path = format!("{WIDGETS}/hangs");
    let deleted = client.delete(&path, json!(null));
    assert!(timeout(HANGS, deleted).await.is_err());
    drop(client);
    until("the request is logged", || {
        !journal.about("hangs").is_empty()
    })
    .await;
    let lines = journal.about("hangs");
    let [line] = &lines[..] else {
        panic!("{lines:#?}");
    };
    assert_eq!(
        (
            &line["verb"],
            &line["user"],
            &line["stage"],
            line.get("code")
        ),
        (
            &json!("delete"),
            &json!("alice"),
            &json!("authorized"),
            None
        )
    );
}

#[tokio::test]
async fn of_a_command_its_sandbox_is_named_and_no_word_of_it() {
    let (journal, _guard) = Journal::open();
    let cluster = Cluster::start(mk_node(2)).await;
    cluster.create("box").await;
    let headers = [("x-sandbox-id", "box")];
    let command = json!({"command": "echo confidential"}).to_string();
    let ran = cluster
        .client
        .request("POST", "/sandbox-router/execute", &headers, command);
    assert_eq!(ran.await.code(), 200);
    let path = "/sandbox-router/exists/confidential";
    cluster.client.request("GET", path, &headers, "").await;

    let lines = journal.about("box");
    let (commands, others): (Vec<_>, Vec<_>) = lines
        .iter()
        .filter(|line| line["subresource"] == "exec")
        .partition(|line| line["action"] == "execute");
    assert_eq!((commands.len(), others.len()), (1, 1), "{lines:#?}");
    assert_eq!(others[0]["action"], "exists");
    let line = commands[0];
    for (field, value) in [
        ("user", "admin"),
        ("verb", "create"),
        ("resource", "sandboxes"),
        ("namespace", "default"),
        ("stage", "answered"),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
    let text = String::from_utf8(journal.0.lock().clone()).unwrap();
    assert!(!text.contains("confidential"), "{text}");
}
