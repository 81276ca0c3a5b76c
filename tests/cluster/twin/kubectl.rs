//! kubectl's commands on both: what is printed, and how it ends.

use serde_json::{Value, json};

use super::{for_twin, install, of_twin, step::plain, step::with, strip_object};
use crate::{kubectl::Kubectl, stage};

/// Arguments, and what is on standard input.
type Command = (&'static [&'static str], Option<Value>);

/// One of the two.
struct Side {
    kubectl: Kubectl,
    namespace: String,
    template: String,
    is_twin: bool,
}

impl Side {
    /// Exit status, output and complaints.
    async fn run(&self, (args, input): &Command) -> (bool, String, String) {
        let translated = |text: &str| match self.is_twin {
            true => for_twin(text),
            false => text.to_owned(),
        };
        let mut all = vec!["--namespace".to_owned(), self.namespace.clone()];
        all.extend(args.iter().map(|arg| translated(arg)));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let input = input.as_ref().map(Value::to_string).unwrap_or_default();
        let input = input.replace("{template}", &self.template);
        let output = self.kubectl.run_with_input(&all, &translated(&input)).await;
        let shown = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).replace(&self.namespace, "NAMESPACE");
            match self.is_twin {
                true => of_twin(&text),
                false => text,
            }
        };
        (
            output.status.success(),
            comparable(&shown(&output.stdout)),
            without_own_warnings(&shown(&output.stderr)),
        )
    }
}

/// An object without what no two share; any other text as it is.
fn comparable(stdout: &str) -> String {
    match serde_json::from_str::<Value>(stdout) {
        Ok(mut object) if object.is_object() => {
            strip_object(&mut object);
            object.to_string()
        }
        _ => stdout.to_owned(),
    }
}

/// kubectl prints a server's warnings a line each; those of leases and agents are this server's own.
fn without_own_warnings(stderr: &str) -> String {
    let own = ["ends with its lease", "the node runs no agent"];
    let lines = stderr.lines();
    lines
        .filter(|line| !own.iter().any(|own| line.contains(own)))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn labelled(team: &str) -> Value {
    with("a", json!({"metadata": {"labels": {"team": team}}}))
}

fn commands() -> Vec<Command> {
    vec![
        (&["create", "-f-"], Some(labelled("x"))),
        (&["create", "-f-"], Some(labelled("x"))),
        (&["get", "sandbox", "a", "-o", "name"], None),
        (&["get", "sandbox", "a", "-o", "json"], None),
        (
            &["get", "sandbox", "a", "-o", "json", "--show-managed-fields"],
            None,
        ),
        (&["get", "sandbox", "absent"], None),
        (
            &[
                "get",
                "sandboxes",
                "-l",
                "team=x",
                "-o",
                "jsonpath={.items[*].metadata.name}",
            ],
            None,
        ),
        (
            &[
                "get",
                "sandboxes",
                "--chunk-size=1",
                "-o",
                "custom-columns=N:.metadata.name,T:.metadata.labels.team",
            ],
            None,
        ),
        (&["get", "sandboxes", "-l", "team in (", "-o", "name"], None),
        (
            &[
                "get",
                "sandboxes",
                "--field-selector=spec.x=1",
                "-o",
                "name",
            ],
            None,
        ),
        (&["apply", "-f-"], Some(labelled("x"))),
        (&["apply", "-f-"], Some(labelled("x"))),
        (&["diff", "-f-"], Some(labelled("x"))),
        (&["apply", "-f-"], Some(labelled("y"))),
        (&["apply", "-f-", "--dry-run=server"], Some(labelled("z"))),
        (&["apply", "-f-", "--server-side"], Some(labelled("y"))),
        (&["apply", "-f-", "--server-side"], Some(labelled("y"))),
        (
            &["apply", "-f-", "--server-side", "--field-manager=other"],
            Some(labelled("z")),
        ),
        (
            &[
                "apply",
                "-f-",
                "--server-side",
                "--field-manager=other",
                "--force-conflicts",
            ],
            Some(labelled("z")),
        ),
        (
            &["get", "sandbox", "a", "-o", "json", "--show-managed-fields"],
            None,
        ),
        (&["apply", "-f-", "--server-side"], Some(plain("b"))),
        (
            &["apply", "-f-", "--server-side", "--dry-run=server"],
            Some(plain("c")),
        ),
        (
            &["apply", "view-last-applied", "sandbox", "a", "-o", "json"],
            None,
        ),
        (&["label", "sandbox", "a", "colour=red"], None),
        (&["label", "sandbox", "a", "colour=blue"], None),
        (
            &["label", "sandbox", "a", "colour=blue", "--overwrite"],
            None,
        ),
        (&["label", "sandbox", "a", "colour-"], None),
        (&["annotate", "sandbox", "a", "note=one"], None),
        (
            &["annotate", "sandbox", "a", "note=two", "--overwrite"],
            None,
        ),
        (&["annotate", "sandbox", "a", "note-"], None),
        (
            &[
                "patch",
                "sandbox",
                "a",
                "--type=merge",
                "-p",
                r#"{"spec":{"shutdownPolicy":"Delete"}}"#,
            ],
            None,
        ),
        (
            &[
                "patch",
                "sandbox",
                "a",
                "--type=merge",
                "-p",
                r#"{"spec":{"shutdownPolicy":"Delete"}}"#,
            ],
            None,
        ),
        (
            &[
                "patch",
                "sandbox",
                "a",
                "--type=json",
                "-p",
                r#"[{"op":"replace","path":"/spec/shutdownPolicy","value":"Retain"}]"#,
            ],
            None,
        ),
        (&["patch", "sandbox", "a", "-p", r#"{"spec":{}}"#], None),
        (
            &[
                "patch",
                "sandbox",
                "a",
                "--type=merge",
                "-p",
                r#"{"spec":{"shutdownPolicy":"Never"}}"#,
            ],
            None,
        ),
        (&["replace", "-f-"], Some(labelled("r"))),
        (
            &[
                "wait",
                "sandbox/a",
                "--for=jsonpath={.metadata.labels.team}=r",
                "--timeout=5s",
            ],
            None,
        ),
        (
            &[
                "wait",
                "sandbox/a",
                "--for=jsonpath={.metadata.labels.team}=other",
                "--timeout=1s",
            ],
            None,
        ),
        (
            &["wait", "sandbox/absent", "--for=delete", "--timeout=5s"],
            None,
        ),
        (
            &["create", "--validate=strict", "-f-"],
            Some(with("typo", json!({"spec": {"operatingMod": "Running"}}))),
        ),
        (
            &["create", "--validate=warn", "--dry-run=server", "-f-"],
            Some(with("typo", json!({"spec": {"operatingMod": "Running"}}))),
        ),
        (
            &["create", "--dry-run=server", "-f-", "-o", "json"],
            Some(plain("dry")),
        ),
        (&["explain", "sandboxes.spec.operatingMode"], None),
        (
            &["explain", "sandboxes.spec.podTemplate.spec.nodeName"],
            None,
        ),
        (&["explain", "sandboxes.spec.nothing"], None),
        (&["delete", "sandbox", "a", "--dry-run=server"], None),
        (&["delete", "sandbox", "absent"], None),
        (&["delete", "sandbox", "absent", "--ignore-not-found"], None),
        (&["delete", "sandboxes", "-l", "team=r"], None),
        (&["delete", "sandboxes", "--all"], None),
        (&["get", "sandboxes", "-o", "name"], None),
        (&["get", "sandboxes"], None),
    ]
}

#[tokio::test]
async fn kubectl_prints_the_same_of_both() {
    let stage = stage::shared().await;
    install(stage.control_plane).await;
    let namespace = stage.namespace("kubectl-pair").await;
    let template = stage.own_node().template;
    let side = |is_twin| Side {
        kubectl: stage.control_plane.kubectl(),
        namespace: namespace.clone(),
        template: template.clone(),
        is_twin,
    };
    let (ours, twin) = (side(false), side(true));
    stage.openapi_has("agents.x-k8s.io/v1beta1").await;
    stage.openapi_has("twin.example.org/v1beta1").await;
    let mut wrong = Vec::new();
    for command in commands() {
        let (actual, expected) = (ours.run(&command).await, twin.run(&command).await);
        if actual != expected {
            wrong.push(format!(
                "{:?}\n  ours:   {actual:?}\n  theirs: {expected:?}",
                command.0
            ));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}
