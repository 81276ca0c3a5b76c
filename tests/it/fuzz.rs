//! Requests that nobody would send, by chance: the server says what is wrong with each, goes on, and loses no VM.

use rand::{Rng as _, SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};
use serde_json::{Value, json};

use crate::harness::{Answer, Cluster, SANDBOXES, item, mk_node, mk_sandbox, until};

const N_REQUESTS: usize = 1_000;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "absent", "A_"];
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
const SUFFIXES: [&str; 7] = [
    "",
    "/status",
    "/pause",
    "/resume",
    "/fork",
    "/snapshot",
    "/x",
];
const KEYS: [&str; 18] = [
    "allowWatchBookmarks",
    "continue",
    "dryRun",
    "fieldManager",
    "fieldSelector",
    "fieldValidation",
    "force",
    "gracePeriodSeconds",
    "labelSelector",
    "limit",
    "orphanDependents",
    "pretty",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "includeObject",
];
const VALUES: [&str; 26] = [
    "",
    "0",
    "1",
    "-1",
    "true",
    "False",
    "All",
    "Strict",
    "Ignore",
    "Exact",
    "NotOlderThan",
    "m",
    "x%00y",
    "%ff",
    "a=b",
    "a%3Db",
    "a%20in%20(b",
    "metadata.name%3Da",
    "!a",
    "999999999999999999999",
    "9223372036854775807",
    "Orphan",
    "Background",
    "Foreground",
    "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ",
    "%F0%9F%92%A9",
];
const CONTENT_TYPES: [&str; 8] = [
    "application/json",
    "application/yaml",
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
    "text/plain",
    "",
];
const ACCEPTED: [&str; 8] = [
    "application/json",
    "application/yaml",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
    "application/json;as=Table;v=v9;g=x",
    "*/*",
    "text/html;q=2",
    ",;=,",
];
const POINTERS: [&str; 7] = [
    "/metadata/labels/a",
    "/metadata/finalizers",
    "/metadata/uid",
    "/spec/operatingMode",
    "/spec/podTemplate/spec/containers/0/image",
    "/spec",
    "/nothing/at/all",
];

/// Makes requests.
struct Chance(SmallRng);

impl Chance {
    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices.choose(&mut self.0).unwrap()
    }

    fn once_in(&mut self, n: u32) -> bool {
        self.0.random_ratio(1, n)
    }

    /// Any small value.
    fn value(&mut self, depth: usize) -> Value {
        match self.0.random_range(0..if depth == 0 { 7 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.0.random::<bool>()),
            2 => json!(self.0.random_range(-2..300)),
            3 => json!(1.5e300),
            4 => json!("\u{0}é\u{1F4A9}"),
            5 => json!(self.of(&["", "a", "Running", "Suspended", "2030-01-01T00:00:00Z"])),
            6 => json!("x".repeat(300)),
            7 => (0..3).map(|_| self.value(depth - 1)).collect(),
            _ => json!({"name": self.value(depth - 1), "a": self.value(depth - 1)}),
        }
    }

    /// A Sandbox, most of the time nearly right.
    fn sandbox(&mut self) -> Value {
        let mut sandbox = mk_sandbox(self.of(&NAMES));
        while self.once_in(3) {
            let pointer = self.of(&POINTERS);
            let (parent, last) = pointer.rsplit_once('/').unwrap();
            let value = self.value(3);
            match sandbox.pointer_mut(parent) {
                Some(Value::Object(fields)) => drop(fields.insert(last.to_owned(), value)),
                Some(place) => *place = value,
                None => {}
            }
        }
        sandbox
    }

    fn operations(&mut self) -> Value {
        let operation = |chance: &mut Self| {
            json!({
                "op": chance.of(&["add", "add", "remove", "replace", "move", "copy", "test", "x"]),
                "path": chance.of(&POINTERS),
                "from": chance.of(&POINTERS),
                "value": chance.value(2),
            })
        };
        (0..self.0.random_range(0..3))
            .map(|_| operation(self))
            .collect()
    }

    /// A body and its type, as the method has them.
    fn fitting(&mut self, method: &str) -> (&'static str, String) {
        let body = match (method, self.0.random_range(0..4)) {
            ("PATCH", 0) => return (CONTENT_TYPES[3], self.operations().to_string()),
            ("PATCH", 1) => return (CONTENT_TYPES[4], self.sandbox().to_string()),
            ("PATCH", _) => {
                let labels = json!({"a": self.of(&["x", "y"]), "b": self.value(1)});
                let patch = json!({"metadata": {"labels": labels}, "spec": {"operatingMode": self.of(&["Running", "Suspended", "x"])}});
                return (CONTENT_TYPES[2], patch.to_string());
            }
            ("DELETE", 0..3) => String::new(),
            ("DELETE", _) => json!({"kind": "DeleteOptions", "preconditions": self.value(2), "dryRun": self.value(1)}).to_string(),
            ("GET" | "HEAD" | "OPTIONS", _) => String::new(),
            _ => self.sandbox().to_string(),
        };
        (CONTENT_TYPES[0], body)
    }

    /// The same, or something else.
    fn body(&mut self, method: &str) -> (&'static str, String) {
        let (mut content_type, mut body) = self.fitting(method);
        if self.once_in(8) {
            content_type = CONTENT_TYPES.choose(&mut self.0).unwrap();
        }
        if self.once_in(8) {
            body = self.value(4).to_string();
        }
        if self.once_in(8) {
            let cut = self.0.random_range(0..=body.len());
            body.truncate(body.floor_char_boundary(cut));
        }
        (content_type, body)
    }

    fn path(&mut self, method: &str) -> String {
        let mut path = match (method, self.0.random_range(0..8)) {
            (_, 0) => {
                let odd = [
                    "/",
                    "/apis",
                    "/openapi/v2",
                    "/apis/agents.x-k8s.io/v9/x",
                    "//",
                    "/apis/%2e%2e",
                ];
                self.of(&odd).to_owned()
            }
            ("POST", 1..6) | (_, 1) => SANDBOXES.to_owned(),
            ("POST", _) | (_, 2) => format!("{}{}", item(self.of(&NAMES)), self.of(&SUFFIXES)),
            _ => item(self.of(&NAMES)),
        };
        let mut separator = '?';
        if method == "PATCH" {
            path += "?fieldManager=m";
            separator = '&';
        }
        while self.once_in(4) {
            path.push(separator);
            path += &format!("{}={}", self.of(&KEYS), self.of(&VALUES));
            separator = '&';
        }
        path
    }
}

/// What is wrong with an answer.
fn fault(method: &str, answer: &Answer) -> Option<String> {
    let code = answer.code();
    let text = || answer.text();
    match code {
        500.. if code != 503 && code != 504 => Some(format!("{code}: {}", text())),
        400.. if method == "HEAD" || text() == "404 page not found\n" => None,
        400.. => {
            let is_yaml = answer.header("content-type").contains("yaml");
            let status: Value = match is_yaml {
                true => serde_saphyr::from_str(&text()).unwrap_or_default(),
                false => serde_json::from_str(&text()).unwrap_or_default(),
            };
            let is_status = status["kind"] == "Status" && status["code"] == code;
            (!is_status).then(|| format!("no Status: {}", text()))
        }
        _ => None,
    }
}

#[tokio::test]
async fn requests_by_chance_are_answered_and_lose_nothing() {
    let seed = std::env::var("FUZZ_SEED").ok();
    let seed: u64 = seed.map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("FUZZ_SEED={seed}");
    let mut chance = Chance(SmallRng::seed_from_u64(seed));
    let cluster = Cluster::start(mk_node(64)).await;
    for name in ["a", "b"] {
        cluster.create(name).await;
    }
    let mut n_written = 0;
    for _ in 0..N_REQUESTS {
        let method = chance.of(&METHODS);
        let (path, (content_type, body)) = (chance.path(method), chance.body(method));
        let headers = [
            ("content-type", content_type),
            ("accept", chance.of(&ACCEPTED)),
        ];
        let answer = cluster
            .client
            .request(method, &path, &headers, body.clone())
            .await;
        n_written += usize::from(answer.code() < 300 && !matches!(method, "GET" | "HEAD"));
        if let Some(fault) = fault(method, &answer) {
            panic!("{method} {path} {headers:?} {body}: {fault}");
        }
    }
    // Not everything is refused, or nothing is tried.
    assert!(n_written > N_REQUESTS / 200, "{n_written} writes");
    // Every VM that is held is an object's, and every object that runs has one.
    let claimed = || {
        cluster
            .nodes
            .nodes()
            .iter()
            .map(|node| node.claimed())
            .sum::<usize>()
    };
    let everything = sandbox_apiserver::store::Scope::All;
    let shown = || {
        let store = cluster.fleet.store();
        store
            .page(&everything, None, store.head(), 10_000)
            .unwrap()
            .items
    };
    let running = || shown().iter().filter(|object| !object.value.gone).count();
    until("the nodes hold what is shown", || claimed() == running()).await;
    let listed = cluster.client.get(SANDBOXES).await;
    assert_eq!(listed.names().len(), shown().len());
}
