//! Which objects a list has.

use serde_json::Value;

use crate::{
    conformance::{
        client::Client,
        shown::{items, name, names, version},
        subject::Subject,
    },
    stage::API,
};

/// The names of the list at `path` with a selector, percent-encoded as clients do.
async fn selected(client: &Client, path: &str, selector: &str) -> Vec<String> {
    let selector = selector.replace('=', "%3D").replace(' ', "+");
    let (parameter, value) = selector.split_once(':').unwrap();
    let path = format!("{path}?{parameter}={value}");
    let list = client.get(&path).await.ok();
    names(&list).into_iter().map(str::to_owned).collect()
}

/// What cannot be read is refused in lists and watches.
async fn refused(client: &Client, path: &str, parameter: &str, value: &str) {
    let value = value.replace('=', "%3D").replace(' ', "+");
    for watch in ["", "watch=true&"] {
        let path = format!("{path}?{watch}{parameter}={value}");
        client.get(&path).await.expect(400, "BadRequest");
    }
}

pub(super) async fn c_108(subject: &Subject) {
    let created = subject.create("a").await;
    subject.create("b").await;
    let (namespace, all) = (&subject.namespace, subject.collection());
    let node = created["status"]["nodeName"].as_str().unwrap_or("nowhere");
    for client in subject.both_ways() {
        for (selector, expected) in [
            ("metadata.name=a", &["a"][..]),
            ("metadata.name==a", &["a"]),
            ("metadata.name!=a", &["b"]),
            ("metadata.name!=a,metadata.name!=b", &[]),
            (&format!("metadata.namespace={namespace}"), &["a", "b"]),
            (&format!("metadata.namespace!={namespace}"), &[]),
            (
                &format!("metadata.namespace=={namespace},metadata.name=b"),
                &["b"],
            ),
            (&format!("status.nodeName={node},metadata.name=a"), &["a"]),
            (&format!("status.nodeName!={node},metadata.name=a"), &[]),
        ] {
            let found = selected(&client, &all, &format!("fieldSelector:{selector}")).await;
            assert_eq!(found, expected, "{selector}");
        }
        for wrong in ["spec.nope=1", "metadata.name", "=a", "metadata.name=a,b"] {
            refused(&client, &all, "fieldSelector", wrong).await;
        }
    }
}

pub(super) async fn c_109(subject: &Subject) {
    for name in ["blue", "plain", "red"] {
        subject.create(name).await;
    }
    for colour in ["blue", "red"] {
        subject.label(colour, "colour", colour).await;
    }
    let all = subject.collection();
    for client in subject.both_ways() {
        for (selector, expected) in [
            ("colour=red", &["red"][..]),
            ("colour==red", &["red"]),
            ("colour!=red", &["blue", "plain"]),
            ("colour in (red,blue)", &["blue", "red"]),
            ("colour in (green)", &[]),
            ("colour notin (red, green)", &["blue", "plain"]),
            ("colour", &["blue", "red"]),
            ("!colour", &["plain"]),
            ("colour,colour!=red", &["blue"]),
        ] {
            let found = selected(&client, &all, &format!("labelSelector:{selector}")).await;
            assert_eq!(found, expected, "{selector}");
        }
        for wrong in ["a b c", "a=b=c", "a in (x", "a in x", "-a-=x"] {
            refused(&client, &all, "labelSelector", wrong).await;
        }
    }
}

pub(super) async fn c_110(subject: &Subject) {
    subject.create("a").await;
    subject.create("b").await;
    let (namespace, here) = (&subject.namespace, subject.collection());
    let everywhere = format!("{API}/sandboxes");
    for client in subject.both_ways() {
        for (path, selector, expected) in [
            (&here, "metadata.name=a".to_owned(), &["a"][..]),
            (&here, "metadata.name=absent".to_owned(), &[]),
            (
                &everywhere,
                format!("metadata.namespace={namespace}"),
                &["a", "b"],
            ),
            (
                &everywhere,
                format!("metadata.name=b,metadata.namespace={namespace}"),
                &["b"],
            ),
        ] {
            let found = selected(&client, path, &format!("fieldSelector:{selector}")).await;
            assert_eq!(found, expected, "{selector}");
        }
    }
}

/// A custom resource answers 404 to the POST: see `docs/differences.md`.
pub(super) async fn c_111(subject: &Subject) {
    let (mine, other) = (&subject.namespace, subject.other_namespace().await);
    subject.create("a").await;
    let everywhere = format!("{API}/sandboxes");
    for (client, made) in subject.both_ways().into_iter().zip(["b", "c"]) {
        let list = client.get(&everywhere).await.ok();
        let is_mine = |object: &Value| object["metadata"]["namespace"] == **mine;
        assert!(items(&list).iter().any(|o| is_mine(o) && name(o) == "a"));

        let mut object = subject.mk("never");
        for namespace in ["", mine, &other] {
            object["metadata"]["namespace"] = namespace.into();
            let answer = client.post(&everywhere, &object).await;
            assert!(
                matches!(answer.status.as_u16(), 400 | 405),
                "{namespace:?}: {:#}",
                answer.body
            );
        }
        let never = selected(&client, &everywhere, "fieldSelector:metadata.name=never").await;
        assert_eq!(never, [] as [String; 0]);

        let from = version(&list);
        let path = format!("{everywhere}?watch=true&resourceVersion={from}");
        let mut watch = client.watch(&path).await;
        subject.create(made).await;
        // Other checks have sandboxes too.
        loop {
            let event = watch.event().await;
            if is_mine(&event["object"]) && name(&event["object"]) == made {
                assert_eq!(event["type"], "ADDED");
                break;
            }
        }
    }
}
