//! kubectl's commands that change what is there.

use serde_json::{Value, json};

use super::super::{
    client::{APPLY, MERGE, TABLE},
    command::{Commands, Request, lines},
    subject::Subject,
    writes::{SOON, version, with},
};
use crate::stage::eventually;

/// kube-apiserver fetches the documents of a server when it comes, and once a minute afterwards. Without them kubectl does
/// not ask the server for its judgement of fields.
async fn openapi_is_there(subject: &Subject) {
    let path = "/openapi/v3/apis/agents.x-k8s.io/v1beta1";
    let client = subject.proxied();
    eventually(SOON * 3, "OpenAPI is aggregated", async || {
        client.get(path).await.status == 200
    })
    .await;
}

fn team(subject: &Subject, team: &str) -> Value {
    with(
        subject,
        "a",
        &json!({"metadata": {"labels": {"team": team}}}),
    )
}

/// The only request of its verb.
#[track_caller]
fn only<'a>(requests: &'a [Request], verb: &str) -> &'a Request {
    let of_verb: Vec<_> = requests
        .iter()
        .filter(|request| request.verb == verb)
        .collect();
    assert_eq!(of_verb.len(), 1, "{requests:#?}");
    of_verb[0]
}

pub(super) async fn c_166(subject: &Subject) {
    openapi_is_there(subject).await;
    let commands = Commands::new(subject);
    let apply = ["apply", "-f-"];
    let made = commands.requests(&apply, &team(subject, "x")).await;
    assert_eq!(lines(&made), ["GET /a", "POST "]);
    for said in [
        "fieldManager=kubectl-client-side-apply",
        "fieldValidation=Strict",
    ] {
        assert!(made[1].says(said), "{made:#?}");
    }
    let before = subject.proxied().get(&subject.item("a")).await.ok();
    let again = commands.ok(&apply, &team(subject, "x")).await;
    assert_eq!(again, "sandbox.agents.x-k8s.io/a unchanged\n");
    let again = commands.requests(&apply, &team(subject, "x")).await;
    assert_eq!(lines(&again), ["GET /a"]);
    let after = subject.proxied().get(&subject.item("a")).await.ok();
    assert_eq!(after["metadata"], before["metadata"]);

    let dry = ["apply", "-f-", "--dry-run=server"];
    let dry = commands.requests(&dry, &team(subject, "y")).await;
    assert_eq!(lines(&dry), ["GET /a", "PATCH /a"]);
    assert!(dry[1].says("dryRun=All"), "{dry:#?}");
    let changed = commands.requests(&apply, &team(subject, "y")).await;
    assert_eq!(lines(&changed), ["GET /a", "PATCH /a"]);
    let patch = &changed[1];
    assert_eq!(patch.content_type, MERGE);
    assert_eq!(patch.body["metadata"]["labels"], json!({"team": "y"}));
    for said in [
        "fieldManager=kubectl-client-side-apply",
        "fieldValidation=Strict",
    ] {
        assert!(patch.says(said), "{patch:#?}");
    }
    let shown = subject.proxied().get(&subject.item("a")).await.ok();
    assert_eq!(shown["metadata"]["labels"]["team"], "y");
    assert_eq!(shown["metadata"]["uid"], before["metadata"]["uid"]);
}

pub(super) async fn c_167(subject: &Subject) {
    let commands = Commands::new(subject).with_editor("sed -i s/note:.two/note:\\ edited/");
    let shown = async || subject.proxied().get(&subject.item("a")).await.ok();
    subject.create_from(team(subject, "x")).await;
    for (command, place) in [
        (
            ["label", "sandbox", "a", "colour=red"],
            "/metadata/labels/colour",
        ),
        (
            ["annotate", "sandbox", "a", "note=two"],
            "/metadata/annotations/note",
        ),
    ] {
        let requests = commands.requests(&command, &Value::Null).await;
        assert_eq!(lines(&requests), ["GET /a", "PATCH /a"]);
        assert_eq!(requests[1].content_type, MERGE);
        assert!(requests[1].body.pointer(place).is_some(), "{requests:#?}");
        assert!(shown().await.pointer(place).is_some());
    }
    let edited = commands
        .requests(&["edit", "sandbox", "a"], &Value::Null)
        .await;
    let patch = only(&edited, "PATCH");
    assert_eq!(patch.content_type, MERGE);
    assert_eq!(shown().await["metadata"]["annotations"]["note"], "edited");

    let replaced = commands
        .requests(&["replace", "-f-"], &team(subject, "r"))
        .await;
    assert_eq!(lines(&replaced), ["GET /a", "PUT /a"]);
    assert_eq!(shown().await["metadata"]["labels"]["team"], "r");
    let mut stale = shown().await;
    stale["metadata"]["labels"]["team"] = "s".into();
    subject.label("a", "changed", "since").await;
    let stale = commands.run(&["replace", "-f-"], &stale).await;
    assert!(stale.stderr.contains("(Conflict)"), "{stale:#?}");

    let before = shown().await;
    for (name, n_expected, verb) in [("a", 1, "PATCH"), ("new", 1, "POST")] {
        let wanted = with(
            subject,
            name,
            &json!({"metadata": {"labels": {"team": "d"}}}),
        );
        let diff = commands.run(&["diff", "-f-", "-v=8"], &wanted).await;
        // It ends with 1 for a difference and with more for a failure.
        assert!(diff.stdout.contains("team: d"), "{diff:#?}");
        let requests = super::super::command::requests(&diff.stderr);
        let writes: Vec<_> = requests
            .iter()
            .filter(|request| request.verb != "GET")
            .collect();
        assert_eq!(writes.len(), n_expected, "{requests:#?}");
        assert_eq!(writes[0].verb, verb);
        assert!(writes[0].says("dryRun=All"));
        if verb == "PATCH" {
            let sent = &writes[0].body["metadata"]["resourceVersion"];
            assert_eq!(sent, version(&before));
        }
    }
    assert_eq!(shown().await, before);

    let apply = ["apply", "-f-", "--server-side", "--field-manager=other"];
    let mine = json!({"metadata": {"labels": {"mine": "x"}}});
    let applied = commands.requests(&apply, &with(subject, "a", &mine)).await;
    let patch = only(&applied, "PATCH");
    assert_eq!(
        (patch.content_type.as_str(), patch.says("force=false")),
        (APPLY, true)
    );
    assert_eq!(shown().await["metadata"]["labels"]["mine"], "x");
    let refused = commands.run(&apply, &team(subject, "mine")).await;
    assert!(refused.stderr.contains("conflict"), "{refused:#?}");
}

pub(super) async fn c_168(subject: &Subject) {
    let commands = Commands::new(subject);
    let created = subject.create("a").await;
    let at_status = "--subresource=status";
    for client in subject.both_ways() {
        let path = format!("{}/status", subject.item("a"));
        let shown = client.get(&path).await.ok();
        assert_eq!(shown["metadata"]["uid"], created["metadata"]["uid"]);
        let table = client.get_as(&path, TABLE).await.ok();
        assert_eq!(table["kind"], "Table");
        assert_eq!(table["rows"][0]["object"]["metadata"]["name"], "a");
    }
    let row = commands
        .ok(&["get", "sandbox", "a", at_status], &Value::Null)
        .await;
    assert!(row.contains("NAME") && row.contains("\na "), "{row}");
    let json = ["get", "sandbox", "a", at_status, "-o", "json"];
    let json = commands.ok(&json, &Value::Null).await;
    let mut object: Value = serde_json::from_str(&json).expect("kubectl prints JSON");
    assert_eq!(object["kind"], "Sandbox");
    let patch = r#"{"status":{"nodeName":"mine"}}"#;
    let patch = [
        "patch",
        "sandbox",
        "a",
        at_status,
        "--type=merge",
        "-p",
        patch,
    ];
    let patched = commands.requests(&patch, &Value::Null).await;
    assert_eq!(only(&patched, "PATCH").line(), "PATCH /a/status");
    if subject.has_nodes() {
        let told = commands.run(&patch, &Value::Null).await.stderr;
        assert!(told.contains("status: dropped"), "{told}");
    }
    let now = subject.proxied().get(&subject.item("a")).await.ok();
    object["metadata"]["resourceVersion"] = version(&now).into();
    object["metadata"]["labels"]["dropped"] = "x".into();
    let replaced = commands
        .requests(&["replace", at_status, "-f-"], &object)
        .await;
    assert_eq!(only(&replaced, "PUT").line(), "PUT /a/status");
    let apply = ["apply", "--server-side", at_status, "-f-"];
    let status = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": "a"}, "status": {"nodeName": "mine"},
    });
    let forced = [&apply[..], &["--force-conflicts"]].concat();
    let applied = commands.requests(&forced, &status).await;
    assert_eq!(only(&applied, "PATCH").line(), "PATCH /a/status");
    let shown = subject.proxied().get(&subject.item("a")).await.ok();
    assert_eq!(shown["metadata"]["labels"].get("dropped"), None);
    assert_eq!(shown["spec"], created["spec"]);
    // Where it is the server's to say, it stays what it was.
    let expected = match subject.has_nodes() {
        true => created["status"]["nodeName"].clone(),
        false => json!("mine"),
    };
    assert_eq!(shown["status"]["nodeName"], expected);
}
