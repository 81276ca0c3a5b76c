//! GET and LIST.

use serde_json::json;

use super::subject::Subject;

items! {
    c_112 P0 "A missing object is answered with 404 NotFound and details of what is missing.";
}

async fn c_112(subject: &Subject) {
    for client in subject.both_ways() {
        let answer = client.get(&subject.item("absent")).await;
        answer.expect(404, "NotFound");
        assert_eq!(
            answer.body["message"],
            r#"sandboxes.agents.x-k8s.io "absent" not found"#
        );
        let details = json!({"name": "absent", "group": "agents.x-k8s.io", "kind": "sandboxes"});
        assert_eq!(answer.body["details"], details);
    }
}
