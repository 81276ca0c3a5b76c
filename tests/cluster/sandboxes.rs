//! Sandboxes as kubectl and controllers use them, through kube-apiserver.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    kubectl::In,
    stage::{self, TEMPLATE, eventually, item, sandbox},
};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn kubectl_creates_shows_and_deletes_a_sandbox() {
    let stage = stage::shared().await;
    let here = In::new(&stage, "kubectl").await;
    let created = here
        .feed(&["create", "-f-"], &sandbox("hello", TEMPLATE))
        .await;
    assert_eq!(created, "sandbox.agents.x-k8s.io/hello created\n");

    let shown = here.run(&["get", "sandboxes"]).await;
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["NAME", "READY", "REASON", "AGE"]
    );
    assert!(
        lines[1].starts_with("hello") && lines[1].contains("True"),
        "{shown}"
    );
    let wide = here.run(&["get", "sandbox", "hello", "-o", "wide"]).await;
    assert!(wide.contains("sim-000"), "{wide}");
    let all = here.run(&["get", "sandboxes", "-A"]).await;
    assert!(all.contains(&here.namespace), "{all}");
    let yaml = here.run(&["get", "sandbox", "hello", "-o", "yaml"]).await;
    assert!(
        yaml.contains("kind: Sandbox") && yaml.contains("operatingMode: Running"),
        "{yaml}"
    );
    let described = here.run(&["describe", "sandbox", "hello"]).await;
    assert!(described.contains("DependenciesReady"), "{described}");
    let labels = here.run(&["get", "sandboxes", "--show-labels"]).await;
    assert!(labels.contains("sandbox.cocoonstack.io/node="), "{labels}");
    here.run(&["get", "sandboxes", "--sort-by=.metadata.name"])
        .await;

    let ready = [
        "wait",
        "--for=condition=Ready",
        "sandbox/hello",
        "--timeout=10s",
    ];
    here.run(&ready).await;
    let deleted = here.run(&["delete", "sandbox", "hello"]).await;
    assert!(deleted.contains("deleted"), "{deleted}");
    assert_eq!(stage.nodes.held(&here.namespace).await, []);
    let missing = here
        .refused(&["get", "sandbox", "hello"], &json!(null))
        .await;
    assert!(missing.contains("(NotFound)"), "{missing}");
}

// kubernetes/kubernetes#133402, kubernetes/kubernetes#119662
#[tokio::test]
async fn kubectl_knows_the_resource_and_its_fields() {
    let stage = stage::shared().await;
    let here = In::new(&stage, "explain").await;
    stage.openapi_has("agents.x-k8s.io/v1beta1").await;
    let explained = here.run(&["explain", "sandbox.spec.operatingMode"]).await;
    assert!(
        explained.contains("FIELD: operatingMode") && explained.contains("Suspended"),
        "{explained}"
    );
    let resources = ["api-resources", "--api-group=agents.x-k8s.io", "-o", "wide"];
    let resources = here.run(&resources).await;
    let row = resources.lines().find(|line| line.starts_with("sandboxes"));
    let row = row.unwrap_or_else(|| panic!("{resources}"));
    assert!(row.contains("agents.x-k8s.io/v1beta1"), "{row}");
    assert!(
        row.contains("create,delete,deletecollection,get,list,patch,update,watch"),
        "{row}"
    );
}

#[tokio::test]
async fn kubectl_speaks_the_deprecated_version_too() {
    let stage = stage::shared().await;
    let here = In::new(&stage, "versions").await;
    let mut old = sandbox("old", TEMPLATE);
    old["apiVersion"] = "agents.x-k8s.io/v1alpha1".into();
    let args = here.args(&["create", "-f-"]);
    let created = here.kubectl.run_with_input(&args, &old.to_string()).await;
    let warned = String::from_utf8_lossy(&created.stderr);
    assert!(created.status.success(), "{warned}");
    assert!(
        warned.contains("agents.x-k8s.io/v1alpha1 Sandbox is deprecated"),
        "{warned}"
    );
    let fields = "-o=jsonpath={.metadata.uid} {.metadata.resourceVersion}";
    let shown = here
        .run(&["get", "sandboxes.agents.x-k8s.io", "old", fields])
        .await;
    let old = "sandboxes.v1alpha1.agents.x-k8s.io";
    assert_eq!(here.run(&["get", old, "old", fields]).await, shown);
    let suspend = r#"{"spec":{"replicas":0}}"#;
    here.run(&["patch", old, "old", "--type=merge", "-p", suspend])
        .await;
    let suspended = here.json(&["get", "sandbox", "old"]).await;
    assert_eq!(suspended["spec"]["operatingMode"], "Suspended");
}

// cozystack/cozystack#3982, kubernetes/kubernetes#133402
#[tokio::test]
async fn a_misspelt_field_is_refused_and_a_dry_run_claims_nothing() {
    let stage = stage::shared().await;
    let here = In::new(&stage, "strict").await;
    stage.openapi_has("agents.x-k8s.io/v1beta1").await;
    let mut misspelt = sandbox("typo", TEMPLATE);
    misspelt["spec"]["operatingMod"] = "Running".into();
    let strict = ["create", "--validate=strict", "-f-"];
    let refused = here.refused(&strict, &misspelt).await;
    assert!(
        refused.contains(r#"unknown field "spec.operatingMod""#),
        "{refused}"
    );
    let warned = here.args(&["create", "--validate=warn", "--dry-run=server", "-f-"]);
    let warned = here
        .kubectl
        .run_with_input(&warned, &misspelt.to_string())
        .await;
    let warning = String::from_utf8_lossy(&warned.stderr);
    assert!(
        warned.status.success() && warning.contains("unknown field"),
        "{warning}"
    );

    let dry = ["create", "--dry-run=server", "-o", "json", "-f-"];
    let dry: Value =
        serde_json::from_str(&here.feed(&dry, &sandbox("dry", TEMPLATE)).await).unwrap();
    assert_eq!(dry["spec"]["operatingMode"], "Running");
    assert_eq!(stage.nodes.held(&here.namespace).await, []);

    here.feed(&["create", "-f-"], &sandbox("kept", TEMPLATE))
        .await;
    for args in [
        &["delete", "sandbox", "kept", "--dry-run=server"][..],
        &["delete", "sandboxes", "--all", "--dry-run=server"],
        &["label", "sandbox", "kept", "a=b", "--dry-run=server"],
        &[
            "patch",
            "sandbox",
            "kept",
            "--dry-run=server",
            "--type=merge",
            "-p",
            r#"{"spec":{"operatingMode":"Suspended"}}"#,
        ],
    ] {
        here.run(args).await;
    }
    let kept = here.json(&["get", "sandbox", "kept"]).await;
    assert_eq!(kept["metadata"]["labels"]["a"], Value::Null);
    assert_eq!(kept["spec"]["operatingMode"], "Running");
    assert_eq!(stage.nodes.held(&here.namespace).await.len(), 1);
}

#[tokio::test]
async fn a_second_apply_of_the_same_file_changes_nothing() {
    let stage = stage::shared().await;
    let here = In::new(&stage, "apply").await;
    let mut wanted = sandbox("applied", TEMPLATE);
    wanted["metadata"]["labels"] = json!({"team": "a"});
    let apply = ["apply", "-f-"];
    assert_eq!(
        here.feed(&apply, &wanted).await,
        "sandbox.agents.x-k8s.io/applied created\n"
    );
    let before = here.json(&["get", "sandbox", "applied"]).await;
    assert_eq!(
        here.feed(&apply, &wanted).await,
        "sandbox.agents.x-k8s.io/applied unchanged\n"
    );
    let after = here.json(&["get", "sandbox", "applied"]).await;
    assert_eq!(before, after);
    wanted["metadata"]["labels"] = json!({"team": "b"});
    assert_eq!(
        here.feed(&apply, &wanted).await,
        "sandbox.agents.x-k8s.io/applied configured\n"
    );
    let selected = here
        .run(&["get", "sandboxes", "-l", "team=b", "-o", "name"])
        .await;
    assert_eq!(selected, "sandbox.agents.x-k8s.io/applied\n");
    let diff = here.args(&["diff", "-f-"]);
    let diff = here
        .kubectl
        .run_with_input(&diff, &wanted.to_string())
        .await;
    assert!(
        diff.status.success(),
        "{}{}",
        String::from_utf8_lossy(&diff.stdout),
        String::from_utf8_lossy(&diff.stderr)
    );
}

#[tokio::test]
async fn labels_annotations_patches_and_replacements_are_kept() {
    let stage = stage::shared().await;
    let here = In::new(&stage, "change").await;
    here.feed(&["create", "-f-"], &sandbox("changed", TEMPLATE))
        .await;
    let uid = here.json(&["get", "sandbox", "changed"]).await["metadata"]["uid"].clone();
    for args in [
        &["label", "sandbox", "changed", "colour=red"][..],
        &["annotate", "sandbox", "changed", "note=one"],
        &["label", "sandbox", "changed", "colour=blue", "--overwrite"],
        &[
            "patch",
            "sandbox",
            "changed",
            "--type=merge",
            "-p",
            r#"{"metadata":{"annotations":{"merge":"yes"}}}"#,
        ],
        &[
            "patch",
            "sandbox",
            "changed",
            "--type=json",
            "-p",
            r#"[{"op":"add","path":"/metadata/annotations/json","value":"yes"}]"#,
        ],
    ] {
        here.run(args).await;
    }
    let mut changed = here.json(&["get", "sandbox", "changed"]).await;
    let metadata = &changed["metadata"];
    assert_eq!(metadata["labels"]["colour"], "blue");
    for (key, value) in [("note", "one"), ("merge", "yes"), ("json", "yes")] {
        assert_eq!(metadata["annotations"][key], value, "{key}");
    }
    // The object as an editor would send it back.
    changed["metadata"]["annotations"]["note"] = "two".into();
    let replaced = here.feed(&["replace", "-f-"], &changed).await;
    assert!(replaced.contains("replaced"), "{replaced}");
    let again = here.refused(&["replace", "-f-"], &changed).await;
    assert!(again.contains("(Conflict)"), "a stale version: {again}");
    let kept = here.json(&["get", "sandbox", "changed"]).await;
    assert_eq!(kept["metadata"]["annotations"]["note"], "two");
    assert_eq!(kept["metadata"]["uid"], uid);
    let refused = [
        "patch",
        "sandbox",
        "changed",
        "--type=strategic",
        "-p",
        "{}",
    ];
    let refused = here.refused(&refused, &json!(null)).await;
    assert!(
        refused.contains("accepted media types include: application/json-patch+json"),
        "{refused}"
    );
    assert_eq!(stage.nodes.held(&here.namespace).await.len(), 1);
}

// e2b-dev/E2B#736, e2b-dev/E2B#884
#[tokio::test]
async fn operating_mode_pauses_and_resumes_again_and_again() {
    const ROUNDS: usize = 10;
    let stage = stage::shared().await;
    let here = In::new(&stage, "mode").await;
    here.feed(&["create", "-f-"], &sandbox("sleeper", TEMPLATE))
        .await;
    let uid = here.json(&["get", "sandbox", "sleeper"]).await["metadata"]["uid"].clone();
    let path = item(&here.namespace, "sleeper");
    for round in 0..ROUNDS {
        for (mode, subresource, ready) in [
            ("Suspended", "pause", "False"),
            ("Running", "resume", "True"),
        ] {
            if round % 2 == 0 {
                let patch = json!({"spec": {"operatingMode": mode}}).to_string();
                here.run(&["patch", "sandbox", "sleeper", "--type=merge", "-p", &patch])
                    .await;
            }
            for _ in 0..2 {
                let raw = format!("--raw={path}/{subresource}");
                here.feed(&["create", &raw, "-f-"], &json!({})).await;
            }
            let now = here.json(&["get", "sandbox", "sleeper"]).await;
            assert_eq!(now["spec"]["operatingMode"], mode, "round {round}");
            assert_eq!(now["metadata"]["uid"], uid);
            let conditions = now["status"]["conditions"].as_array().unwrap();
            let condition = conditions
                .iter()
                .find(|condition| condition["type"] == "Ready");
            assert_eq!(condition.unwrap()["status"], ready, "round {round}");
        }
    }
    let held = stage.nodes.held(&here.namespace).await;
    let id = &held[0].id;
    let requests = stage.nodes.requests(held[0].node, "POST").await;
    let count = |call: &str| {
        requests
            .iter()
            .filter(|(path, _)| *path == format!("/v1/sandboxes/{id}/{call}"))
            .count()
    };
    assert_eq!((count("hibernate"), count("wake")), (ROUNDS, ROUNDS));
}

#[tokio::test]
async fn kubectl_watches_and_waits() {
    let stage = stage::shared().await;
    let here = In::new(&stage, "wait").await;
    here.feed(&["create", "-f-"], &sandbox("first", TEMPLATE))
        .await;
    let watching = here.kubectl.clone();
    let namespace = here.namespace.clone();
    let watch = tokio::spawn(async move {
        let args = [
            "get",
            "sandboxes",
            "-w",
            "--request-timeout=4s",
            "--namespace",
            &namespace,
        ];
        let output = watching.run(&args).await;
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    here.feed(&["create", "-f-"], &sandbox("second", TEMPLATE))
        .await;
    let seen = watch.await.unwrap();
    assert!(
        seen.contains("first") && seen.contains("second"),
        "{seen}\n{}",
        stage.serve.log_tail(5)
    );

    let began = Instant::now();
    let never = [
        "wait",
        "--for=condition=Nothing",
        "sandbox/first",
        "--timeout=2s",
    ];
    here.refused(&never, &json!(null)).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());

    let (kubectl, namespace) = (here.kubectl.clone(), here.namespace.clone());
    let gone = tokio::spawn(async move {
        let args = [
            "wait",
            "--for=delete",
            "sandbox/first",
            "--timeout=20s",
            "--namespace",
            &namespace,
        ];
        kubectl.run(&args).await
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let began = Instant::now();
    here.run(&["delete", "sandbox", "first", "--wait=false"])
        .await;
    assert!(gone.await.unwrap().status.success());
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

// kubernetes/kubernetes#25903
#[tokio::test]
async fn a_collection_is_deleted_by_label() {
    let stage = stage::shared().await;
    let here = In::new(&stage, "collection").await;
    for (name, team) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        let mut wanted = sandbox(name, TEMPLATE);
        wanted["metadata"]["labels"] = json!({"team": team});
        here.feed(&["create", "-f-"], &wanted).await;
    }
    here.run(&["delete", "sandboxes", "-l", "team=a"]).await;
    let left = here.run(&["get", "sandboxes", "-o", "name"]).await;
    assert_eq!(left, "sandbox.agents.x-k8s.io/b1\n");
    let admin = stage.admin();
    let all = stage::collection(&here.namespace);
    admin
        .delete(&format!("{all}?labelSelector=a%3Db%3Dc"))
        .await
        .expect(400, "BadRequest");
    admin
        .delete(&format!("{all}?fieldSelector=spec.nope%3D1"))
        .await
        .expect(400, "BadRequest");
    assert_eq!(stage.nodes.held(&here.namespace).await.len(), 1);
    let deleted = admin.delete(&all).await.ok();
    assert_eq!(
        deleted["items"].as_array().map(Vec::len),
        Some(1),
        "{deleted:#}"
    );
    assert_eq!(stage.nodes.held(&here.namespace).await, []);
}

#[tokio::test]
async fn nothing_is_claimed_for_a_namespace_that_is_absent_or_ending() {
    let stage = stage::shared().await;
    let node = stage.own_node();
    let wanted = sandbox("homeless", &node.template);
    let admin = stage.admin();
    let absent = admin
        .post(&stage::collection("no-such-place"), &wanted)
        .await;
    absent.expect(404, "NotFound");
    assert_eq!(
        absent.body["message"],
        r#"namespaces "no-such-place" not found"#
    );

    let here = In::new(&stage, "ending").await;
    let held = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    here.feed(&["create", "-f-"], &held).await;
    here.run(&["delete", "namespace", &here.namespace, "--wait=false"])
        .await;
    let path = stage::collection(&here.namespace);
    eventually(SOON, "the end is known", async || {
        admin
            .post(&format!("{path}?dryRun=All"), &wanted)
            .await
            .status
            == 403
    })
    .await;
    let ending = admin.post(&path, &wanted).await;
    ending.expect(403, "Forbidden");
    assert_eq!(ending.causes(), ["NamespaceTerminating"]);
    let free = r#"{"metadata":{"finalizers":null}}"#;
    here.run(&["patch", "configmap", "held", "--type=merge", "-p", free])
        .await;
    let claims = here.stage.nodes.requests(node.index, "POST").await;
    assert_eq!(claims, [], "the node was not even asked");
}
