//! What all answers have in common, and those that say no.

use std::collections::BTreeSet;

use http::HeaderMap;
use serde_json::{Value, json};

use crate::{
    caller::Answer,
    conformance::{
        client::{Client, MERGE},
        credentials::Door,
        subject::Subject,
    },
    stage::{self, OwnNode},
};

/// The longest that a warning is where there are many, and the most of all together.
const WARNING: usize = 256;
const WARNINGS: usize = 4_096;

pub(super) async fn c_207(subject: &Subject) {
    let (node, nodes) = (subject.own_node(), subject.nodes());
    let answered = |status: u16| json!({"status": {"status": status, "text": "oops"}});
    for (n, fault, code, reason, after) in [
        // Nobody knows what was done, or it will not be better: no client may repeat this by itself.
        (1, answered(500), 500, "InternalError", None),
        (2, json!("wrongJson"), 500, "InternalError", None),
        (3, json!("unauthorized"), 500, "InternalError", None),
        // Nothing was done, and it will be better soon.
        (4, answered(429), 503, "ServiceUnavailable", Some(1)),
    ] {
        nodes
            .fail_once(node.index, fault.clone(), "/v1/claim")
            .await;
        let answer = create(subject, &subject.direct(), &node, &format!("case-{n}")).await;
        answer.expect(code, reason);
        assert_eq!(answer.retry_after(), after, "{fault}: {:#}", answer.body);
    }
    nodes.stop(node.index).await;
    for client in subject.both_ways() {
        let answer = create(subject, &client, &node, "down").await;
        answer.expect(503, "ServiceUnavailable");
        assert_eq!(answer.retry_after(), Some(1), "{:#}", answer.body);
    }
    nodes.start(node.index).await;
}

async fn create(subject: &Subject, client: &Client, node: &OwnNode, name: &str) -> Answer {
    let object = stage::sandbox(name, &node.template);
    client.post(&subject.collection(), &object).await
}

pub(super) async fn c_208(subject: &Subject) {
    let created = subject.create("a").await;
    let (all, one) = (subject.collection(), subject.item("a"));
    let mut stale = created.clone();
    stale["metadata"]["resourceVersion"] = "1".into();
    stale["metadata"]["labels"] = json!({"x": "y"});
    let (same, stale) = (subject.mk("a").to_string(), stale.to_string());
    let bad_name = subject.mk("Upper").to_string();
    let strategic = ("content-type", "application/strategic-merge-patch+json");
    for client in subject.both_ways() {
        for (method, path, header, body, code, reason) in [
            ("GET", subject.item("absent"), None, "", 404, "NotFound"),
            ("GET", format!("{one}/nothing"), None, "", 404, "NotFound"),
            ("GET", format!("{all}?limit=x"), None, "", 400, "BadRequest"),
            (
                "GET",
                format!("{all}?continue=x"),
                None,
                "",
                400,
                "BadRequest",
            ),
            (
                "GET",
                one.clone(),
                Some(("accept", "image/png")),
                "",
                406,
                "NotAcceptable",
            ),
            ("POST", all.clone(), None, "{", 400, "BadRequest"),
            ("POST", all.clone(), None, &same, 409, "AlreadyExists"),
            ("POST", all.clone(), None, &bad_name, 422, "Invalid"),
            (
                "POST",
                all.clone(),
                Some(("content-type", "text/csv")),
                "a",
                415,
                "UnsupportedMediaType",
            ),
            ("PUT", one.clone(), None, &stale, 409, "Conflict"),
            (
                "PATCH",
                one.clone(),
                Some(strategic),
                "{}",
                415,
                "UnsupportedMediaType",
            ),
            (
                "DELETE",
                format!("{one}/status"),
                None,
                "",
                405,
                "MethodNotAllowed",
            ),
            (
                "DELETE",
                format!("{one}?propagationPolicy=x"),
                None,
                "",
                422,
                "Invalid",
            ),
        ] {
            let headers: Vec<_> = header.into_iter().collect();
            let answer = client.send(method, &path, &headers, body).await;
            is_status(&answer, code, reason, &format!("{method} {path}"));
        }
    }
    let nobody = format!("nobody-{}", subject.namespace);
    for client in [subject.proxied_as(&nobody), subject.direct_as(&nobody)] {
        let answer = client.get(&all).await;
        is_status(&answer, 403, "Forbidden", "somebody without rights");
    }
}

fn is_status(answer: &Answer, code: u16, reason: &str, what: &str) {
    let body = &answer.body;
    assert_eq!(
        (answer.status.as_u16(), &body["reason"]),
        (code, &json!(reason)),
        "{what}: {body:#}"
    );
    let head = (
        &body["kind"],
        &body["apiVersion"],
        &body["status"],
        &body["code"],
    );
    assert_eq!(
        head,
        (
            &json!("Status"),
            &json!("v1"),
            &json!("Failure"),
            &json!(code)
        ),
        "{what}"
    );
    assert!(body["metadata"].is_object(), "{what}: {body:#}");
    assert!(
        body["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{what}"
    );
    assert_eq!(answer.headers["content-type"], "application/json", "{what}");
}

pub(super) async fn c_209(subject: &Subject) {
    subject.create("a").await;
    let id = "0f9e2c54-8a0a-4a4e-9a7b-5f5f5f5f5f5f";
    for client in subject.both_ways() {
        let mut ids = BTreeSet::new();
        for path in [
            subject.item("a"),
            subject.item("absent"),
            subject.item("%3Cscript%3E"),
            format!("{}?labelSelector=%3Cb%3E", subject.collection()),
        ] {
            let given = client.send("GET", &path, &[("audit-id", id)], "").await;
            assert_eq!(header(&given, "audit-id"), [id], "{path}");
            let plain = client.get(&path).await;
            let [made] = header(&plain, "audit-id")[..] else {
                panic!("one Audit-Id: {:?}", plain.headers);
            };
            assert_eq!(made.len(), id.len());
            assert!(ids.insert(made.to_owned()), "each is new");
            assert_eq!(
                header(&plain, "cache-control"),
                ["no-cache, private"],
                "{path}"
            );
            if !plain.status.is_success() {
                let text = String::from_utf8_lossy(&plain.bytes);
                assert!(!text.contains(['<', '>']), "{text}");
                assert_eq!(
                    plain.status.as_u16(),
                    if path.contains('?') { 400 } else { 404 }
                );
                is_not_sniffed(subject, &plain);
            }
        }
        watches_are_told_apart(subject, &client, &mut ids, id).await;
    }
    strangers_are_told_apart(subject, id).await;
    nothing_is_sniffed(subject).await;
}

/// kube-apiserver says so itself of a few texts only, and not of the Status of a custom resource.
#[track_caller]
fn is_not_sniffed(subject: &Subject, refused: &Answer) {
    if subject.has_nodes() {
        let value = header(refused, "x-content-type-options");
        assert_eq!(value, ["nosniff"], "{}: {:#}", refused.status, refused.body);
    }
}

/// The head of a watch, which is an answer too.
async fn watches_are_told_apart(
    subject: &Subject,
    client: &Client,
    ids: &mut BTreeSet<String>,
    id: &str,
) {
    let path = format!("{}?watch=true&timeoutSeconds=1", subject.collection());
    let given = client.watch_with(&path, &[("audit-id", id)]).await;
    assert_eq!(values(given.headers(), "audit-id"), [id]);
    let plain = client.watch(&path).await;
    let [made] = values(plain.headers(), "audit-id")[..] else {
        panic!("one Audit-Id: {:?}", plain.headers());
    };
    assert!(ids.insert(made.to_owned()), "each is new");
    let caching = values(plain.headers(), "cache-control");
    assert_eq!(caching, ["no-cache, private"]);
}

/// Who is not known is answered like everybody else. A custom resource has no port but kube-apiserver's, which answers by itself
/// there.
async fn strangers_are_told_apart(subject: &Subject, id: &str) {
    if !subject.has_nodes() {
        return;
    }
    let stranger = Door::of(subject).with_token("of-nobody");
    let path = subject.collection();
    let given = stranger.send("GET", &path, &[("audit-id", id)], "").await;
    given.expect(401, "Unauthorized");
    assert_eq!(header(&given, "audit-id"), [id]);
    let plain = stranger.get(&path).await;
    plain.expect(401, "Unauthorized");
    let [made] = header(&plain, "audit-id")[..] else {
        panic!("one Audit-Id: {:?}", plain.headers);
    };
    assert!(made != id && made.len() == id.len());
    assert_eq!(header(&plain, "cache-control"), ["no-cache, private"]);
    is_not_sniffed(subject, &plain);
}

/// Forbidden text is what a browser would be shown. That a flood is refused so as well: C-205.
async fn nothing_is_sniffed(subject: &Subject) {
    let nobody = format!("nobody-{}", subject.namespace);
    for client in [subject.proxied_as(&nobody), subject.direct_as(&nobody)] {
        let refused = client.get(&subject.collection()).await;
        refused.expect(403, "Forbidden");
        assert_eq!(header(&refused, "x-content-type-options"), ["nosniff"]);
    }
    for path in ["/livez", "/readyz", "/healthz"] {
        let health = subject.direct().get(path).await;
        assert_eq!(
            header(&health, "x-content-type-options"),
            ["nosniff"],
            "{path}"
        );
    }
}

/// The values of a header. kube-apiserver puts its own beside that of the server that it asked, which has to be the same.
fn header<'a>(answer: &'a Answer, name: &str) -> Vec<&'a str> {
    values(&answer.headers, name)
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let values = headers.get_all(name).into_iter();
    let mut values: Vec<&str> = values.map(|value| value.to_str().unwrap()).collect();
    values.dedup();
    values
}

pub(super) async fn c_210(subject: &Subject) {
    let dry = format!("{}?dryRun=All", subject.collection());
    for client in subject.both_ways() {
        let mut object = subject.mk("a");
        object["spec"]["a\"b\\c"] = 1.into();
        let warnings = warnings(&client.post(&dry, &object).await);
        // Go writes the field into a quoted text, which is quoted again as a part of the header.
        let expected = r#""unknown field \"spec.a\\\"b\\\\c\"""#;
        let plain = r#""unknown field \"spec.a\"b\\c\"""#;
        assert!(
            warnings
                .iter()
                .any(|text| text == expected || text == plain),
            "{warnings:?}"
        );
        for n in 0..60 {
            let name = format!("{n}{}", "x".repeat(300));
            object["spec"][&name] = 1.into();
        }
        let answer = client.post(&dry, &object).await;
        let warnings = self::warnings(&answer);
        let distinct: BTreeSet<_> = warnings.iter().collect();
        assert_eq!(distinct.len(), warnings.len(), "told once each");
        let texts = warnings.iter().map(|text| unquoted(text).chars().count());
        let lengths: Vec<usize> = texts.collect();
        assert!(
            lengths.iter().all(|length| *length <= WARNING),
            "{lengths:?}"
        );
        let total: usize = lengths.iter().sum();
        // The last that begins below the bound may end above it.
        assert!(
            (WARNINGS / 2..WARNINGS + WARNING).contains(&total),
            "{lengths:?}"
        );
        assert_eq!(answer.status, 201);
    }
    subject.create("b").await;
    for client in subject.both_ways() {
        the_same_is_told_once(subject, &client).await;
    }
}

/// A field that is there three times is found twice too often, and three owners that are one are two too many.
async fn the_same_is_told_once(subject: &Subject, client: &Client) {
    let mut text = subject.mk("c").to_string();
    text.insert_str(1, r#""kind":"Sandbox","kind":"Sandbox","#);
    let dry = format!("{}?dryRun=All", subject.collection());
    let thrice = client.send("POST", &dry, &[], &text).await;
    assert_eq!(thrice.status, 201, "{:#}", thrice.body);
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "00000000-0000-4000-8000-000000000002"});
    let owners: Value = json!({"metadata": {"ownerReferences": [owner, owner, owner]}});
    let path = format!("{}?dryRun=All", subject.item("b"));
    let owned = client.patch(MERGE, &path, &owners).await;
    assert_eq!(owned.status, 200, "{:#}", owned.body);
    for (answer, of) in [(thrice, "duplicate field"), (owned, "duplicate entries")] {
        let told = warnings(&answer);
        let about = told.iter().filter(|text| text.contains(of)).count();
        assert_eq!(about, 1, "{of}: {told:?}");
    }
}

/// The quoted texts of the warnings.
fn warnings(answer: &Answer) -> Vec<String> {
    let values = answer.headers.get_all("warning").into_iter();
    let texts = values.map(|value| {
        let value = value.to_str().unwrap();
        let text = value.strip_prefix("299 - ");
        text.unwrap_or_else(|| panic!("{value}")).to_owned()
    });
    texts.collect()
}

fn unquoted(quoted: &str) -> String {
    let inner = quoted
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let inner = inner.unwrap_or_else(|| panic!("not quoted: {quoted}"));
    let mut text = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.extend(chars.next()),
            '"' => panic!("a quote that is not escaped: {quoted}"),
            c => text.push(c),
        }
    }
    text
}
