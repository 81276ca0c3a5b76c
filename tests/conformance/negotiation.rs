//! Which form an answer has.

use std::{
    io::Read as _,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    client::{Client, METADATA, METADATA_LIST, SOON, TABLE},
    subject::Subject,
};
use crate::caller::Answer;

items! {
    c_076 P0 "Anything means JSON; clauses of Accept go by quality, then in order; none that fits is 406.";
    c_077 P1 "YAML is spoken in and out, for objects, lists and errors.";
    c_078 P0 "A body without a type is JSON, parameters of the type are ignored, an unknown type is 415.";
    c_079 P0 "Protobuf falls through to JSON, and the answer's type is that of its bytes.";
    c_080 P2 "Protobuf for metadata, Status and delete options, and for watches of metadata.", left "lists are streamed, and protobuf wants their length first; who asks for it takes JSON as well";
    c_081 P0 "CBOR is neither written nor read.";
    c_082 P0 "Objects and lists are tables for who asks so, in both versions of Table, and never in protobuf.";
    c_083 P0 "`includeObject` decides what a row carries beside its cells.";
    c_084 P0 "The first column is the name, cells are scalars, and the columns are upstream's.", ours;
    c_085 P0 "A watched table has one row an event and its columns once; bookmarks are tables too.";
    c_086 P0 "Metadata alone is had of an object, of a list and of a watch, each by its own name.";
    c_087 P0 "Errors are a Status in a plain type, and keep their code whatever is accepted.";
    c_088 P0 "Empty lists have empty items.";
    c_089 P1 "Answers over 128 KiB are compressed for who takes gzip, smaller ones are not.";
    c_090 P2 "Watches that begin with a list are compressed for who takes gzip, and other watches never.";
    c_091 P1 "People get indented JSON, by `pretty` or by their client's name.";
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
/// What protobuf of Kubernetes begins with.
const PROTOBUF_MAGIC: &[u8] = b"k8s\0";

fn media_type(answer: &Answer) -> &str {
    answer.headers["content-type"].to_str().unwrap()
}

/// Asserts that the answer is this kind, as JSON, and gives it.
#[track_caller]
fn json_of(answer: Answer, kind: &str) -> Value {
    assert_eq!(media_type(&answer), JSON);
    let body = answer.ok();
    assert_eq!(body["kind"], kind, "{body:#}");
    body
}

/// Asserts a refusal, which is in JSON or in protobuf where that is asked for.
#[track_caller]
fn refuses(answer: &Answer, code: u16, reason: &str) {
    assert_eq!(answer.status, code);
    match media_type(answer) {
        PROTOBUF => assert!(answer.bytes.starts_with(PROTOBUF_MAGIC)),
        _ => answer.expect(code, reason),
    }
}

/// The body as YAML.
#[track_caller]
fn yaml_of(answer: &Answer) -> Value {
    assert_eq!(media_type(answer), YAML);
    let text = std::str::from_utf8(&answer.bytes).unwrap();
    assert!(!text.starts_with('{'), "{text}");
    serde_saphyr::from_str(text).unwrap()
}

async fn c_076(subject: &Subject) {
    subject.create("a").await;
    for client in subject.both_ways() {
        for (path, kind) in [
            (subject.item("a"), "Sandbox"),
            (subject.collection(), "SandboxList"),
        ] {
            json_of(client.get(&path).await, kind);
            for accept in [
                "*/*",
                "application/*",
                "application/json;charset=utf-8;unknown=1",
                "text/html,*/*;q=0.1",
                "application/yaml;q=0.5,application/json;q=0.9",
                "application/json,application/yaml",
                "application/yaml;q=0.2,application/json",
            ] {
                json_of(client.get_as(&path, accept).await, kind);
            }
            for accept in [
                "application/yaml,application/json",
                "application/json;q=0.5,application/yaml;q=0.9",
                "application/json;q=0.5,application/yaml",
                "application/unknown,application/yaml,application/json",
                "application/json;as=Unknown,application/yaml",
                // What names a type goes before what takes any.
                "*/*,application/yaml",
                "application/*,application/yaml",
            ] {
                let answer = client.get_as(&path, accept).await;
                assert_eq!(yaml_of(&answer)["kind"], kind, "{accept}");
            }
            let refused = client.get_as(&path, "text/html, application/unknown").await;
            assert_eq!(media_type(&refused), JSON);
            refused.expect(406, "NotAcceptable");
            let message = refused.body["message"].as_str().unwrap();
            assert!(
                message.contains(JSON) && message.contains(YAML),
                "{message}"
            );
        }
    }
}

async fn c_077(subject: &Subject) {
    subject.create("a").await;
    for (index, client) in subject.both_ways().into_iter().enumerate() {
        let item = subject.item("a");
        let object = yaml_of(&client.get_as(&item, YAML).await);
        assert_eq!(object, client.get(&item).await.body);
        let list = yaml_of(&client.get_as(&subject.collection(), YAML).await);
        assert_eq!(list["kind"], "SandboxList");
        assert!(list["items"].as_array().unwrap().contains(&object));
        let missing = client.get_as(&subject.item("absent"), YAML).await;
        assert_eq!(missing.status, 404);
        assert_eq!(yaml_of(&missing)["reason"], "NotFound");

        let name = format!("yaml-{index}");
        let text = serde_saphyr::to_string(&subject.mk(&name)).unwrap();
        assert!(!text.starts_with('{'), "{text}");
        let headers = [("content-type", YAML), ("accept", YAML)];
        let path = format!("{}?dryRun=All", subject.collection());
        let created = client.send("POST", &path, &headers, &text).await;
        assert_eq!(created.status, 201);
        assert_eq!(yaml_of(&created)["metadata"]["name"], name.as_str());
        let mut changed = client.get(&item).await.ok();
        changed["metadata"]["labels"]["written"] = "in-yaml".into();
        let text = serde_saphyr::to_string(&changed).unwrap();
        let path = format!("{item}?dryRun=All");
        let headers = [("content-type", YAML)];
        let updated = client.send("PUT", &path, &headers, &text).await.ok();
        assert_eq!(updated["metadata"]["labels"]["written"], "in-yaml");
    }
}

async fn c_078(subject: &Subject) {
    subject.create("a").await;
    let (path, item) = (
        format!("{}?dryRun=All", subject.collection()),
        format!("{}?dryRun=All", subject.item("a")),
    );
    let body = subject.mk("b").to_string();
    for client in subject.both_ways() {
        let created = client.post_untyped(&path, &body).await;
        assert_eq!(created.status, 201, "{:#}", created.body);
        let headers = [("content-type", "application/json; charset=utf-8; x=y")];
        let created = client.send("POST", &path, &headers, &body).await;
        assert_eq!(created.status, 201, "{:#}", created.body);
        let unknown = [("content-type", "text/plain")];
        for (method, path, body) in [
            ("POST", &path, &body),
            ("PUT", &item, &body),
            ("PATCH", &item, &"{}".to_owned()),
        ] {
            let refused = client.send(method, path, &unknown, body).await;
            refused.expect(415, "UnsupportedMediaType");
        }
    }
    // kubectl says of no body what it is.
    let path = subject.said(&subject.collection());
    let args = ["create", "--raw", &path, "--filename=-"];
    let (kubectl, body) = (subject.kubectl(), subject.said(&body));
    let deadline = Instant::now() + SOON;
    // Again, where no warm VM was left.
    let made = loop {
        let output = kubectl.run_with_input(&args, &body).await;
        if output.status.success() {
            break output.stdout;
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        let is_busy = complaint.contains("ServiceUnavailable") && complaint.contains("warm");
        assert!(is_busy && Instant::now() < deadline, "{complaint}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let made: Value = serde_json::from_slice(&made).unwrap();
    assert_eq!(made["metadata"]["name"], "b");
}

async fn c_079(subject: &Subject) {
    subject.create("a").await;
    let both = format!("{PROTOBUF},{JSON}");
    let in_protobuf = |shape: &str| shape.replace(JSON, PROTOBUF);
    for client in subject.both_ways() {
        for (path, kind) in [
            (subject.item("a"), "Sandbox"),
            (subject.collection(), "SandboxList"),
        ] {
            json_of(client.get_as(&path, &both).await, kind);
            let only = client.get_as(&path, PROTOBUF).await;
            refuses(&only, 406, "NotAcceptable");
        }
        // As the metadata client of the garbage collector asks.
        for (path, shape) in [
            (subject.item("a"), METADATA),
            (subject.collection(), METADATA_LIST),
        ] {
            let accept = format!("{},{shape},{JSON}", in_protobuf(shape));
            let answer = client.get_as(&path, &accept).await;
            assert_eq!(answer.status, 200);
            match media_type(&answer) {
                PROTOBUF => assert!(answer.bytes.starts_with(PROTOBUF_MAGIC)),
                _ => drop(json_of(answer, kind_of(shape))),
            }
        }
        let path = format!("{}?watch=true", subject.collection());
        let mut watch = client.watch_with(&path, &[("accept", &both)]).await;
        assert_eq!(watch.headers()["content-type"], JSON);
        assert_eq!(watch.event().await["object"]["kind"], "Sandbox");
    }
}

/// The kind that a shape is asked for by.
fn kind_of(shape: &str) -> &str {
    let (_, kind) = shape.split_once("as=").unwrap();
    kind.split(';').next().unwrap()
}

async fn c_081(subject: &Subject) {
    subject.create("a").await;
    let cbor = "application/cbor";
    // An empty map, which would be an object without anything.
    let headers = [("content-type", cbor)];
    for client in subject.both_ways() {
        for path in [subject.item("a"), subject.collection()] {
            client
                .get_as(&path, cbor)
                .await
                .expect(406, "NotAcceptable");
            let both = client
                .get_as(&path, "application/cbor,application/json")
                .await;
            assert_eq!(media_type(&both), JSON);
            assert_eq!(both.status, 200);
        }
        let collection = subject.collection();
        let created = client.send("POST", &collection, &headers, "\u{0}").await;
        created.expect(415, "UnsupportedMediaType");
        let headers = [("content-type", "application/apply-patch+cbor")];
        let path = format!("{}?fieldManager=a", subject.item("a"));
        let applied = client.send("PATCH", &path, &headers, "\u{0}").await;
        applied.expect(415, "UnsupportedMediaType");
    }
}

async fn c_082(subject: &Subject) {
    for name in ["a", "b", "c"] {
        subject.create(name).await;
    }
    let older = TABLE.replace("v=v1", "v=v1beta1");
    let in_protobuf = TABLE.replace(JSON, PROTOBUF);
    for client in subject.both_ways() {
        let page = format!("{}?limit=1", subject.collection());
        for (path, n_rows) in [(subject.item("a"), 1), (subject.collection(), 3), (page, 1)] {
            // As kubectl asks.
            let accept = format!("{TABLE},{older},{JSON}");
            let table = json_of(client.get_as(&path, &accept).await, "Table");
            assert_eq!(table["apiVersion"], "meta.k8s.io/v1");
            assert!(table["metadata"]["resourceVersion"].is_string());
            let is_page = path.contains("limit");
            let token = table["metadata"]["continue"].as_str().unwrap_or_default();
            assert_eq!(!token.is_empty(), is_page, "{path}");
            let remaining = table["metadata"]["remainingItemCount"].as_u64();
            assert_eq!(remaining, is_page.then_some(2), "{path}");
            let n_columns = table["columnDefinitions"].as_array().unwrap().len();
            let rows = table["rows"].as_array().unwrap();
            assert_eq!(rows.len(), n_rows, "{path}");
            for row in rows {
                assert_eq!(row["cells"].as_array().unwrap().len(), n_columns);
                let name = &row["object"]["metadata"]["name"];
                assert!(name.is_string() && row["cells"][0] == *name);
            }
            let table = json_of(client.get_as(&path, &older).await, "Table");
            assert_eq!(table["apiVersion"], "meta.k8s.io/v1beta1");
            let refused = client.get_as(&path, &in_protobuf).await;
            refuses(&refused, 406, "NotAcceptable");
            let next = client
                .get_as(&path, &format!("{in_protobuf},{TABLE}"))
                .await;
            json_of(next, "Table");
        }
    }
}

async fn c_083(subject: &Subject) {
    subject.create("a").await;
    for client in subject.both_ways() {
        for path in [subject.item("a"), subject.collection()] {
            let asked = async |include: &str| {
                let path = format!("{path}{include}");
                client.get_as(&path, TABLE).await
            };
            let row = async |include: &str| {
                let table = json_of(asked(include).await, "Table");
                table["rows"][0]["object"].clone()
            };
            for include in ["", "?includeObject=", "?includeObject=Metadata"] {
                let object = row(include).await;
                assert_eq!(object["kind"], "PartialObjectMetadata", "{include}");
                assert_eq!(object["apiVersion"], "meta.k8s.io/v1", "{include}");
                assert_eq!(object["metadata"]["name"], "a");
                assert!(object.get("spec").is_none());
            }
            let object = row("?includeObject=Object").await;
            assert_eq!(object["kind"], "Sandbox");
            assert_eq!(object["apiVersion"], "agents.x-k8s.io/v1beta1");
            assert!(object["spec"]["podTemplate"].is_object());
            let table = json_of(asked("?includeObject=None").await, "Table");
            let row = table["rows"][0].as_object().unwrap();
            assert_eq!(row.get("object"), Some(&Value::Null));
            let refused = asked("?includeObject=Everything").await;
            refused.expect(400, "BadRequest");
        }
    }
}

async fn c_084(subject: &Subject) {
    subject.create("a").await;
    for client in subject.both_ways() {
        let table = client.get_as(&subject.collection(), TABLE).await;
        let table = json_of(table, "Table");
        let columns = table["columnDefinitions"].as_array().unwrap();
        let first = &columns[0];
        let first = [&first["name"], &first["type"], &first["format"]];
        assert_eq!(first, ["Name", "string", "name"]);
        let narrow = columns.iter().filter(|column| column["priority"] == 0);
        let narrow: Vec<_> = narrow.map(|column| &column["name"]).collect();
        assert_eq!(narrow, ["Name", "Ready", "Reason", "Age"]);
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        let is_scalar = |cell: &Value| !cell.is_object() && !cell.is_array();
        assert!(cells.iter().all(is_scalar), "{cells:?}");
        let shown = [&cells[0], &cells[1], &cells[2]];
        assert_eq!(shown, ["a", "True", "DependenciesReady"]);
        let age = cells[3].as_str().unwrap();
        let amount = age.trim_end_matches(['s', 'm', 'h', 'd']);
        assert!(
            amount != age && amount.starts_with(|c: char| c.is_ascii_digit()),
            "{age}"
        );
    }
    let args = ["get", "sandboxes", "--namespace", &subject.namespace];
    let narrow = subject.kubectl().stdout(&args).await;
    let heads: Vec<_> = narrow.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heads, ["NAME", "READY", "REASON", "AGE"]);
    let args = [&args[..], &["--output=wide"]].concat();
    let wide = subject.kubectl().stdout(&args).await;
    let heads: Vec<_> = wide.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(&heads[..4], ["NAME", "READY", "REASON", "AGE"]);
    assert!(heads.contains(&"NODE"), "{wide}");
}

async fn c_085(subject: &Subject) {
    for way in ["proxied", "direct"] {
        for name in ["a", "b"] {
            let mut object = subject.mk(&format!("{name}-{way}"));
            object["metadata"]["labels"] = json!({"way": way});
            subject.create_from(object).await;
        }
    }
    let [proxied, direct] = subject.both_ways();
    tokio::join!(
        tables_are_watched(subject, &proxied, "proxied"),
        tables_are_watched(subject, &direct, "direct"),
    );
}

/// A watch of the two sandboxes with this label, long enough that a change comes well before its last bookmark.
async fn tables_are_watched(subject: &Subject, client: &Client, way: &str) {
    let query = "watch=true&allowWatchBookmarks=true&timeoutSeconds=12&includeObject=None\
        &sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=";
    let path = format!("{}?{query}&labelSelector=way%3D{way}", subject.collection());
    let (name, other) = (format!("a-{way}"), format!("b-{way}"));
    let mut watch = client.watch_with(&path, &[("accept", TABLE)]).await;
    let mut events = watch.initial().await;
    assert_eq!(events.len(), 3);
    let row = &events[2]["object"]["rows"][0]["object"];
    assert_eq!(
        row["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert!(row["metadata"]["resourceVersion"].is_string());

    subject.label(&other, "seen", "yes").await;
    events.push(watch.event().await);
    // The one before the end of the stream.
    events.push(next_bookmark(&mut watch).await);
    for (index, event) in events.iter().enumerate() {
        let (kind, table) = (event["type"].as_str().unwrap(), &event["object"]);
        assert_eq!(table["kind"], "Table", "{event:#}");
        assert_eq!(table["apiVersion"], "meta.k8s.io/v1");
        assert_eq!(
            table["columnDefinitions"].is_array(),
            index == 0,
            "{event:#}"
        );
        let rows = table["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 1, "{event:#}");
        let expected = ["ADDED", "ADDED", "BOOKMARK", "MODIFIED", "BOOKMARK"];
        assert_eq!(kind, expected[index]);
        if kind != "BOOKMARK" {
            let shown = rows[0]["cells"][0].as_str().unwrap();
            assert!(shown == name || shown == other, "{shown}");
            assert_eq!(rows[0].get("object"), Some(&Value::Null));
        }
    }
}

async fn next_bookmark(watch: &mut super::client::Events) -> Value {
    loop {
        let event = watch.event().await;
        if event["type"] == "BOOKMARK" {
            return event;
        }
    }
}

async fn c_086(subject: &Subject) {
    subject.create("a").await;
    let whole_kind = json!(["PartialObjectMetadata", "meta.k8s.io/v1"]);
    let kind = |value: &Value| json!([value["kind"], value["apiVersion"]]);
    let (item, collection) = (subject.item("a"), subject.collection());
    for client in subject.both_ways() {
        let whole = client.get(&item).await.ok();
        let one = json_of(
            client.get_as(&item, METADATA).await,
            "PartialObjectMetadata",
        );
        assert_eq!(kind(&one), whole_kind);
        assert_eq!(one["metadata"], whole["metadata"]);
        assert!(one.get("spec").is_none() && one.get("status").is_none());
        let list = client.get_as(&collection, METADATA_LIST).await;
        let list = json_of(list, "PartialObjectMetadataList");
        assert_eq!(list["apiVersion"], "meta.k8s.io/v1");
        assert!(list["metadata"]["resourceVersion"].is_string());
        let items = list["items"].as_array().unwrap();
        assert_eq!(items.len(), 1);
        assert_eq!(items[0]["metadata"], whole["metadata"]);
        let path = format!("{collection}?watch=true");
        let mut watch = client.watch_with(&path, &[("accept", METADATA)]).await;
        let event = watch.event().await;
        assert_eq!(kind(&event["object"]), whole_kind);
        assert_eq!(event["object"]["metadata"], whole["metadata"]);
        // A custom resource answers the second with 500, "content is not a list".
        for (path, shape) in [(&collection, METADATA), (&item, METADATA_LIST)] {
            let refused = client.get_as(path, shape).await;
            refused.expect(406, "NotAcceptable");
        }
    }
}

async fn c_087(subject: &Subject) {
    subject.create("a").await;
    let absent = subject.item("absent");
    let stranger = format!("stranger-{}", subject.namespace);
    for client in subject.both_ways() {
        let both = client.get_as(&absent, &format!("{PROTOBUF},{JSON}")).await;
        refuses(&both, 404, "NotFound");
        for accept in [TABLE, METADATA, "*/*"] {
            let missing = client.get_as(&absent, accept).await;
            assert_eq!(media_type(&missing), JSON, "{accept}");
            missing.expect(404, "NotFound");
        }
        for accept in [YAML, "application/json;q=0.1,application/yaml"] {
            let missing = client.get_as(&absent, accept).await;
            assert_eq!(missing.status, 404);
            assert_eq!(yaml_of(&missing)["code"], 404, "{accept}");
        }
    }
    for client in [subject.direct_as(&stranger), subject.proxied_as(&stranger)] {
        for accept in ["text/html", "application/cbor", TABLE] {
            let refused = client.get_as(&absent, accept).await;
            assert_eq!(media_type(&refused), JSON, "{accept}");
            refused.expect(403, "Forbidden");
        }
    }
}

async fn c_088(subject: &Subject) {
    let selected = format!("{}?labelSelector=nobody%3Dhas-it", subject.collection());
    for client in subject.both_ways() {
        for path in [&subject.collection(), &selected] {
            let list = json_of(client.get(path).await, "SandboxList");
            assert_eq!(list.get("items"), Some(&json!([])));
            // A custom resource has null here.
            let list = client.get_as(path, METADATA_LIST).await;
            let list = json_of(list, "PartialObjectMetadataList");
            assert_eq!(list.get("items"), Some(&json!([])));
            let list = yaml_of(&client.get_as(path, YAML).await);
            assert_eq!(list.get("items"), Some(&json!([])));
        }
    }
}

async fn c_089(subject: &Subject) {
    let mut long = subject.mk("long");
    let text = "x".repeat(140 << 10);
    long["metadata"]["annotations"] = json!({"example.org/text": text});
    subject.create_from(long).await;
    subject.create("short").await;
    let gzip = [("accept-encoding", "gzip")];
    for client in subject.both_ways() {
        for path in [subject.item("long"), subject.collection()] {
            let plain = client.send("GET", &path, &[("accept-encoding", "identity")], "");
            let plain = plain.await;
            assert!(!plain.headers.contains_key("content-encoding"));
            assert!(plain.bytes.len() > 128 << 10);
            let packed = client.send("GET", &path, &gzip, "").await;
            assert_eq!(packed.headers["content-encoding"], "gzip");
            let vary = packed.headers["vary"].to_str().unwrap();
            assert!(vary.contains("Accept-Encoding"), "{vary}");
            assert!(packed.bytes.len() < plain.bytes.len() / 4);
            let mut text = String::new();
            let mut reader = flate2::read::GzDecoder::new(&*packed.bytes);
            reader.read_to_string(&mut text).unwrap();
            let unpacked: Value = serde_json::from_str(&text).unwrap();
            let plain = untranslated(subject, &plain);
            // Between two lists other namespaces change, and so the version of the list.
            let what = match plain["items"].is_array() {
                true => "items",
                false => "metadata",
            };
            assert_eq!(unpacked["kind"], plain["kind"]);
            assert_eq!(unpacked[what], plain[what]);
        }
        let short = client.send("GET", &subject.item("short"), &gzip, "").await;
        assert!(!short.headers.contains_key("content-encoding"));
        assert_eq!(short.ok()["metadata"]["name"], "short");
    }
}

async fn c_090(subject: &Subject) {
    subject.create("a").await;
    let listing =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for client in subject.both_ways() {
        let path = format!("{}?watch=true&timeoutSeconds=2", subject.collection());
        let gzip = [("accept-encoding", "gzip")];
        let listed = format!("{path}&{listing}");
        let packed = client.send("GET", &listed, &gzip, "").await;
        assert_eq!(packed.headers["content-encoding"], "gzip");
        let mut text = String::new();
        // A member of the archive for each time that events were sent.
        let mut reader = flate2::read::MultiGzDecoder::new(&*packed.bytes);
        reader.read_to_string(&mut text).unwrap();
        let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let events: Vec<Value> = events.collect();
        assert_eq!(events[0]["object"]["metadata"]["name"], "a");
        assert_eq!(events[1]["type"], "BOOKMARK");
        let plain = client.send("GET", &path, &gzip, "").await;
        assert!(!plain.headers.contains_key("content-encoding"));
    }
}

/// The answer as it was on the wire.
fn untranslated(subject: &Subject, answer: &Answer) -> Value {
    serde_json::from_str(&subject.said(&answer.body.to_string())).unwrap()
}

async fn c_091(subject: &Subject) {
    subject.create("a").await;
    let with = |path: &str, pretty: &str| match pretty {
        "" => path.to_owned(),
        pretty => format!("{path}?pretty={pretty}"),
    };
    for client in subject.both_ways() {
        let is_indented = async |path: &str, pretty: &str, agent: &str| {
            let headers = [("user-agent", agent)];
            let answer = client.send("GET", &with(path, pretty), &headers, "").await;
            let text = String::from_utf8(answer.bytes.to_vec()).unwrap();
            let (lines, indented) = (
                text.trim_end().lines().count(),
                text.contains("\n  \"kind\":"),
            );
            assert_eq!(lines > 1, indented, "{text}");
            serde_json::from_str::<Value>(&text).unwrap();
            indented
        };
        for path in [
            subject.item("a"),
            subject.collection(),
            subject.item("absent"),
        ] {
            assert!(is_indented(&path, "true", "a-program/1").await, "{path}");
            assert!(!is_indented(&path, "", "a-program/1").await, "{path}");
            for people in ["curl/8.5.0", "Wget/1.21", "Mozilla/5.0 (X11)"] {
                assert!(is_indented(&path, "", people).await, "{path} {people}");
                assert!(
                    !is_indented(&path, "false", people).await,
                    "{path} {people}"
                );
            }
        }
    }
}
