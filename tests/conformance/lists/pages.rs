//! Pages.

use std::time::{Duration, Instant};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::{
    conformance::{
        client::{Client, MERGE, SOON, TABLE},
        shown::{items, names, version},
        subject::Subject,
    },
    stage,
};

/// The token that a page ends with.
fn token(page: &Value) -> Option<&str> {
    let token = page["metadata"]["continue"].as_str();
    token.filter(|token| !token.is_empty())
}

/// Every page of a list, from its first.
async fn pages(client: &Client, path: &str) -> Vec<Value> {
    let mut pages = vec![client.get(path).await.ok()];
    while let Some(token) = pages.last().and_then(token) {
        let next = format!("{path}&continue={token}");
        pages.push(client.get(&next).await.ok());
    }
    pages
}

pub(super) async fn c_104(subject: &Subject) {
    for name in ["a", "b", "c", "d", "e"] {
        subject.create(name).await;
    }
    let path = format!("{}?limit=2", subject.collection());
    let mut expected = vec!["a", "b", "c", "d", "e"];
    for (client, gone) in subject.both_ways().into_iter().zip(["d", "e"]) {
        let first = client.get(&path).await.ok();
        assert_eq!(names(&first), expected[..2]);
        // What happens between two pages shows in none of them.
        client.delete(&subject.item(gone)).await.ok();
        subject.create(&format!("c-{gone}")).await;
        let next = async |page: &Value| {
            let token = token(page).expect("there is more");
            client.get(&format!("{path}&continue={token}")).await.ok()
        };
        let second = next(&first).await;
        let third = next(&second).await;
        let found = [&first, &second, &third].map(names).concat();
        assert_eq!(found, expected);
        assert_eq!(token(&third), None, "there is no more");
        for page in [&second, &third] {
            assert_eq!(version(page), version(&first), "one version");
        }
        expected = vec!["a", "b", "c", "c-d", "e"];
    }

    let client = subject.proxied();
    let whole = client.get(&subject.collection()).await.ok();
    let n_items = items(&whole).len();
    assert_eq!(token(&whole), None);
    let exact = format!("{}?limit={n_items}", subject.collection());
    let exact = client.get(&exact).await.ok();
    assert_eq!((names(&exact), token(&exact)), (names(&whole), None));
    // With version 0 a limit may be ignored, and then there is nothing to go on with.
    let any = client.get(&format!("{path}&resourceVersion=0")).await.ok();
    let is_whole = items(&any).len() == n_items;
    assert!(is_whole == token(&any).is_none(), "{any:#}");
    assert!(is_whole || items(&any).len() == 2);

    let plural = subject.translated("sandboxes");
    let args = [
        "get",
        &plural,
        "--chunk-size=2",
        "--output=name",
        "--namespace",
        &subject.namespace,
    ];
    let printed = subject.kubectl().stdout(&args).await;
    assert_eq!(printed.lines().count(), n_items, "{printed}");
}

pub(super) async fn c_105(subject: &Subject) {
    for name in ["a", "b", "c", "d", "e"] {
        subject.create(name).await;
    }
    let all = subject.collection();
    let remaining = |page: &Value| page["metadata"]["remainingItemCount"].as_u64();
    for client in subject.both_ways() {
        let found = pages(&client, &format!("{all}?limit=2")).await;
        let counts: Vec<_> = found.iter().map(remaining).collect();
        assert_eq!(counts, [Some(3), Some(1), None]);
        for selector in [
            "labelSelector=!colour",
            "fieldSelector=metadata.name!%3Dnobody",
        ] {
            let selected = pages(&client, &format!("{all}?limit=2&{selector}")).await;
            assert!(selected.iter().all(|page| remaining(page).is_none()));
            assert!(token(&selected[0]).is_some(), "{selector}");
            let found: Vec<_> = selected.iter().flat_map(names).collect();
            assert_eq!(found, ["a", "b", "c", "d", "e"], "{selector}");
        }
        let whole = client.get(&all).await.ok();
        assert_eq!(remaining(&whole), None);
        let table = client.get_as(&format!("{all}?limit=2"), TABLE).await.ok();
        assert_eq!(remaining(&table), Some(3), "a table is a list too");
    }
}

pub(super) async fn c_106(subject: &Subject) {
    for name in ["a", "b", "c"] {
        subject.create(name).await;
    }
    let path = format!("{}?limit=1", subject.collection());
    let other = subject.other_namespace().await;
    for client in subject.both_ways() {
        let first = client.get(&path).await.ok();
        let token = token(&first).expect("there is more");
        let next = format!("{path}&continue={token}");
        let both = format!("{next}&resourceVersion={}", version(&first));
        client.get(&both).await.expect(400, "BadRequest");
        for version in ["", "0"] {
            let path = format!("{next}&resourceVersion={version}");
            let page = client.get(&path).await.ok();
            // With version 0 a limit may be ignored here too.
            assert!(names(&page).starts_with(&["b"]), "{version:?}");
        }

        // The last is one of kube-apiserver's own form, made to lead to another namespace.
        let start = format!("../{}/a\0", subject.namespace);
        let forged = json!({"v": "meta.k8s.io/v1", "rv": version(&first), "start": start});
        let forged = URL_SAFE_NO_PAD.encode(forged.to_string());
        let elsewhere = stage::collection(&other);
        for malformed in ["forged", "e30", &forged] {
            for list in [&subject.collection(), &elsewhere] {
                let path = format!("{list}?limit=1&continue={malformed}");
                let answer = client.get(&path).await;
                answer.expect(400, "BadRequest");
                let message = answer.body["message"].as_str().unwrap();
                assert!(message.contains("invalid continue token"), "{message}");
            }
        }
        let moved = client.get(&format!("{elsewhere}?continue={token}")).await;
        match moved.status.as_u16() {
            // A custom resource's token holds a name alone, and goes on with what there is: nothing.
            200 => assert_eq!(items(&moved.ok()), [] as [Value; 0]),
            _ => moved.expect(400, "BadRequest"),
        }
        if subject.has_nodes() {
            no_token_leads_to_another_resource(subject, &client).await;
        }
    }
}

/// From one collection of a namespace to the other. A custom resource has none beside it.
async fn no_token_leads_to_another_resource(subject: &Subject, client: &Client) {
    let sandboxes = subject.collection();
    let snapshots = sandboxes.replace("/sandboxes", "/sandboxsnapshots");
    for name in ["a", "b"] {
        let snapshot = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "SandboxSnapshot",
            "metadata": {"name": name}, "spec": {"sandboxName": "a"},
        });
        // Again, as clients do: nodes that other checks have silenced may be asked for the name.
        let deadline = Instant::now() + SOON;
        loop {
            let taken = client.post(&snapshots, &snapshot).await;
            if taken.status != 503 || Instant::now() > deadline {
                taken.ok();
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    for (from, to) in [(&sandboxes, &snapshots), (&snapshots, &sandboxes)] {
        let page = client.get(&format!("{from}?limit=1")).await.ok();
        let token = token(&page).expect("there is more");
        let next = |list: &str| format!("{list}?limit=1&continue={token}");
        assert_eq!(names(&client.get(&next(from)).await.ok()), ["b"]);
        let moved = client.get(&next(to)).await;
        moved.expect(400, "BadRequest");
        let message = moved.body["message"].as_str().unwrap_or_default();
        assert!(message.contains("invalid continue token"), "{message}");
    }
    client.delete(&snapshots).await.ok();
}

pub(super) async fn c_107(subject: &Subject) {
    let mut server = subject.server(&["--history-events=20"]);
    server.ready().await;
    let client = server.client();
    for name in ["a", "b", "c"] {
        subject.create_at(&client, &subject.mk(name)).await;
    }
    let path = format!("{}?limit=1", subject.collection());
    let first = client.get(&path).await.ok();
    assert_eq!(names(&first), ["a"]);
    for round in 0..30 {
        let label = json!({"metadata": {"labels": {"round": round.to_string()}}});
        let item = subject.item("c");
        client.patch(MERGE, &item, &label).await.ok();
    }
    let now = version(&client.get(&subject.collection()).await.ok());
    let next = format!("{path}&continue={}", token(&first).expect("there is more"));
    let expired = client.get(&next).await;
    expired.expect(410, "Expired");
    let resumed = token(&expired.body).expect("how to go on");
    let second = client.get(&format!("{path}&continue={resumed}")).await;
    let second = second.ok();
    assert_eq!(names(&second), ["b"], "behind what was shown");
    assert!(version(&second) >= now, "at the newest version");
    let rest = token(&second).expect("there is more");
    let third = client.get(&format!("{path}&continue={rest}")).await.ok();
    assert_eq!(third["items"][0]["metadata"]["labels"]["round"], "29");
    // An exact version has no place to go on from.
    let old = version(&first);
    let exactly = format!("resourceVersion={old}&resourceVersionMatch=Exact");
    let path = format!("{}?{exactly}", subject.collection());
    let exactly = client.get(&path).await;
    exactly.expect(410, "Expired");
    assert_eq!(token(&exactly.body), None);
}
