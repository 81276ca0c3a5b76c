//! What namespaces, nodes, policies and quotas have to do with a create.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use serde_json::json;

use super::super::{
    client::{Client, MERGE},
    subject::Subject,
    writes::{SOON, cluster, fields, held, message, names, post},
};
use crate::stage::{OwnNode, collection, eventually, item, sandbox};

pub(super) async fn c_142(subject: &Subject) {
    let cluster = cluster(subject);
    let elsewhere = collection("no-such-place");
    for client in subject.both_ways() {
        let absent = client.post(&elsewhere, &subject.mk("a")).await;
        absent.expect(404, "NotFound");
        assert_eq!(message(&absent), r#"namespaces "no-such-place" not found"#);
    }
    for client in subject.both_ways() {
        // Right after its creation, which no watch may have told of.
        let fresh = collection(&subject.other_namespace().await);
        assert_eq!(post(&client, &fresh, &subject.mk("a")).await.status, 201);
    }
    let ending = subject.other_namespace().await;
    let all = collection(&ending);
    let kept = post(&subject.proxied(), &all, &held(subject, "kept")).await;
    assert_eq!(kept.status, 201, "{:#}", kept.body);
    let namespace = format!("/api/v1/namespaces/{ending}");
    cluster.delete(&namespace).await.ok();
    for client in subject.both_ways() {
        let dry = format!("{all}?dryRun=All");
        eventually(SOON, "the end is known", async || {
            client.post(&dry, &subject.mk("a")).await.status == 403
        })
        .await;
        let refused = client.post(&all, &subject.mk("a")).await;
        refused.expect(403, "Forbidden");
        assert_eq!(refused.causes(), ["NamespaceTerminating"]);
        assert_eq!(fields(&refused), ["metadata.namespace"]);
    }
    let free = json!({"metadata": {"finalizers": null}});
    let client = subject.proxied();
    client
        .patch(MERGE, &item(&ending, "kept"), &free)
        .await
        .ok();
    eventually(SOON, "the namespace goes", async || {
        cluster.get(&namespace).await.status == 404
    })
    .await;
}

/// More of what nodes do wrong, and what clients are told then: `tests/cluster/faults.rs`.
pub(super) async fn c_148(subject: &Subject) {
    const CLAIM: &str = "/v1/claim";
    let (node, nodes, all) = (subject.own_node(), subject.nodes(), subject.collection());
    let wanted = |name: &str| sandbox(name, &node.template);
    nodes.set_pool(node.index, &node.template, 0, 0).await;
    subject.publish(node.index).await;
    for client in subject.both_ways() {
        let refused = client.post(&all, &wanted("none")).await;
        refused.expect(503, "ServiceUnavailable");
        assert_eq!(refused.causes(), ["NoWarmCapacity"]);
        assert!(refused.retry_after().is_some(), "{:#}", refused.body);
        assert_eq!(nodes.held_by(node.index, &subject.namespace).await, []);
    }
    nodes.set_pool(node.index, &node.template, 5, 5).await;
    subject.publish(node.index).await;
    for client in subject.both_ways() {
        // It grants, but neither its answer nor the quick question after it comes through.
        let faults = json!([
            {"kind": "answerLost", "path": CLAIM, "times": 1},
            {"kind": {"late": {"millis": 700}}, "path": "/v1/sandboxes", "times": 1},
        ]);
        nodes.set_faults(node.index, faults).await;
        let unknown = client.post(&all, &wanted("lost")).await;
        unknown.expect(500, "InternalError");
        assert_eq!(unknown.retry_after(), None, "{:#}", unknown.body);
        let claims = nodes.requests(node.index, "POST").await;
        let granted = (CLAIM.to_owned(), "answer lost".to_owned());
        assert!(claims.contains(&granted), "{claims:?}");
        eventually(SOON, "what was granted is released", async || {
            let held = nodes.held_by(node.index, &subject.namespace).await;
            let listed = client.get(&subject.item("lost")).await.status;
            held.is_empty() && listed == 404
        })
        .await;
        others_whose_answer_is_lost(subject, &client, &node).await;
    }
}

/// Pause, snapshot and delete, whose calls the node carries out without a word.
async fn others_whose_answer_is_lost(subject: &Subject, client: &Client, node: &OwnNode) {
    let nodes = subject.nodes();
    let path = subject.item("kept");
    let object = sandbox("kept", &node.template);
    subject.create_from(object).await;
    for (method, at, call) in [
        ("POST", "/snapshot", "checkpoint"),
        ("POST", "/pause", "hibernate"),
        ("DELETE", "", "release"),
    ] {
        let lost = |calls: &[(String, String)]| {
            let mut calls = calls.iter().rev();
            calls.any(|(path, end)| path.ends_with(call) && end == "answer lost")
        };
        let faults = format!("/v1/sandboxes/*/{call}");
        let fault = json!([{"kind": "answerLost", "path": faults}]);
        nodes.set_faults(node.index, fault).await;
        let answer = client.send(method, &format!("{path}{at}"), &[], "").await;
        // The server asks again for a release until it is confirmed, and says that it is not yet.
        if method == "DELETE" {
            let pending = &answer.body["metadata"]["deletionTimestamp"];
            assert!(
                answer.status == 200 && pending.is_string(),
                "{:#}",
                answer.body
            );
        } else if call == "checkpoint" {
            // The node is there to be asked whether it took the snapshot.
            assert_eq!(answer.status, 201, "{:#}", answer.body);
        } else {
            answer.expect(500, "InternalError");
        }
        assert_eq!(answer.retry_after(), None, "{call}: {:#}", answer.body);
        let calls = nodes.requests(node.index, "POST").await;
        assert!(lost(&calls), "{call}: {calls:?}");
        nodes.clear_faults(node.index).await;
    }
    eventually(SOON, "it is gone", async || {
        client.get(&path).await.status == 404
    })
    .await;
}

/// Calling the webhooks of the cluster is not built. What is told is checked here, so that it changes with the code.
pub(super) async fn c_149(subject: &Subject) {
    const README: &str = include_str!("../../../README.md");
    let (cluster, name) = (cluster(subject), &subject.namespace);
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{
                    "apiGroups": ["", "agents.x-k8s.io"], "apiVersions": ["*"],
                    "operations": ["CREATE"], "resources": ["configmaps", "sandboxes"],
                }],
            },
            "validations": [{"expression": "object.metadata.name != 'denied'"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    cluster.post(policies, &policy).await.ok();
    cluster.post(bindings, &binding).await.ok();
    let maps = format!("/api/v1/namespaces/{name}/configmaps?dryRun=All");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "denied"}});
    eventually(SOON, "the policy is in force", async || {
        cluster.post(&maps, &map).await.status == 422
    })
    .await;
    let passed = post(
        &subject.proxied(),
        &subject.collection(),
        &subject.mk("denied"),
    )
    .await;
    for (path, name) in [(bindings, name), (policies, name)] {
        cluster.delete(&format!("{path}/{name}")).await.ok();
    }
    assert_eq!(passed.status, 201, "{:#}", passed.body);
    let readme = README.split_whitespace().collect::<Vec<_>>().join(" ");
    for told in [
        "Admission webhooks and admission policies of the cluster do not see sandboxes",
        "namespace that is absent or ending",
    ] {
        assert!(readme.contains(told), "the README does not say: {told}");
    }
}

/// The controller learns of new resources every 30 s, and looks at a quota when its limits change or an object goes.
pub(super) async fn c_150(subject: &Subject) {
    const LEARNT_WITHIN: Duration = Duration::from_secs(60);
    let count = subject.said("count/sandboxes.agents.x-k8s.io");
    for name in ["a", "b"] {
        subject.create(name).await;
    }
    let list = subject.proxied().get(&subject.collection()).await.ok();
    assert_eq!(names(&list), ["a", "b"]);
    let cluster = cluster(subject);
    let quotas = format!("/api/v1/namespaces/{}/resourcequotas", subject.namespace);
    let quota = |limit: &str| {
        json!({
            "apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": "quota"}, "spec": {"hard": {&count: limit}},
        })
    };
    cluster.post(&quotas, &quota("5")).await.ok();
    let path = format!("{quotas}/quota");
    let status = async || cluster.get(&path).await.ok()["status"].clone();
    let limit = AtomicU32::new(5);
    eventually(LEARNT_WITHIN, "both are counted", async || {
        let limit = limit.fetch_add(1, Ordering::Relaxed).to_string();
        cluster.call("PUT", &path, Some(&quota(&limit))).await.ok();
        status().await["used"][&count] == "2"
    })
    .await;
    subject.proxied().delete(&subject.item("a")).await.ok();
    eventually(SOON, "one is given back", async || {
        status().await["used"][&count] == "1"
    })
    .await;

    cluster.call("PUT", &path, Some(&quota("1"))).await.ok();
    let dry = format!("{}?dryRun=All", subject.collection());
    let mut answers = Vec::new();
    for client in subject.both_ways() {
        eventually(SOON, "the limit holds", async || {
            client.post(&dry, &subject.mk("c")).await.status == 403
        })
        .await;
        // Before it is known whether the name is free, and whatever it is.
        for (path, name) in [
            (&dry, "c"),
            (&subject.collection(), "c"),
            (&subject.collection(), "b"),
        ] {
            let answer = client.post(path, &subject.mk(name)).await;
            answer.expect(403, "Forbidden");
            let details = json!({"name": name, "group": "agents.x-k8s.io", "kind": "sandboxes"});
            assert_eq!(answer.body["details"], details);
            answers.push((name, message(&answer).to_owned()));
        }
    }
    let count = "count/sandboxes.agents.x-k8s.io";
    for (name, told) in answers {
        let expected = format!(
            "sandboxes.agents.x-k8s.io {name:?} is forbidden: exceeded quota: quota, \
             requested: {count}=1, used: {count}=1, limited: {count}=1"
        );
        assert_eq!(told, expected);
    }
    // What is there may be changed and deleted, which makes room.
    let client = subject.proxied();
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    client.patch(MERGE, &subject.item("b"), &label).await.ok();
    client.delete(&subject.item("b")).await.ok();
    eventually(SOON, "there is room", async || {
        client
            .post(&subject.collection(), &subject.mk("c"))
            .await
            .status
            == 201
    })
    .await;
}
