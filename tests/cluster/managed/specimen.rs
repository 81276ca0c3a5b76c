//! The custom resource that is written to, and random objects of it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rand::{Rng as _, rngs::SmallRng, seq::SliceRandom as _};
use sandbox_apiserver::{
    api::{SandboxSpec, SandboxStatus},
    schema::{CustomResource, CustomResourceVersion, TypeSchema},
};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

pub(super) const API_VERSION: &str = "differential.example.org/v1";
pub(super) const KIND: &str = "Specimen";

/// A Sandbox's spec, and beside it every other way in which writers share a field.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only the schema is used")]
struct SpecimenSpec {
    sandbox: Option<SandboxSpec>,
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    free: Option<Value>,
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    set: Option<Vec<i64>>,
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id", "zone"]))]
    rows: Option<Vec<Row>>,
    map: Option<BTreeMap<String, String>>,
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    whole: Option<BTreeMap<String, String>>,
    list: Option<Vec<i64>>,
    amounts: Option<BTreeMap<String, Quantity>>,
    /// Has a default.
    #[schemars(extend("default" = 3))]
    number: Option<i64>,
    flag: Option<bool>,
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct Row {
    id: i64,
    #[schemars(extend("default" = "here"))]
    zone: Option<String>,
    text: Option<String>,
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    set: Option<Vec<String>>,
}

pub(super) fn schema() -> TypeSchema {
    TypeSchema::spec_and_status::<SpecimenSpec, SandboxStatus>("A specimen.").unwrap()
}

/// The definition.
pub(super) fn crd() -> Value {
    let version = CustomResourceVersion {
        name: "v1".to_owned(),
        schema: schema(),
        columns: Vec::new(),
        status: true,
        scale: None,
        stored: true,
        deprecation_warning: None,
    };
    let crd = CustomResource {
        group: "differential.example.org".to_owned(),
        kind: KIND.to_owned(),
        plural: "specimens".to_owned(),
        singular: "specimen".to_owned(),
        short_names: Vec::new(),
        namespaced: true,
        versions: vec![version],
    };
    crd.to_value().unwrap()
}

/// Makes random objects, whose fields are few enough to meet often.
pub(super) struct Source<'a>(pub(super) &'a mut SmallRng);

impl Source<'_> {
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.0.random_ratio(percent, 100)
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.0.random_range(0..from.len())].clone()
    }

    /// What a client may send, apart from `status`.
    pub(super) fn object(&mut self, name: &str) -> Value {
        let mut object =
            json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}});
        self.metadata(&mut object["metadata"]);
        object["spec"] = self.spec();
        if self.chance(20) {
            object["status"] = self.status();
        }
        if self.chance(4) {
            self.spoil(&mut object);
        }
        object
    }

    /// What a client may send to the subresource.
    pub(super) fn status_object(&mut self, name: &str) -> Value {
        let mut object =
            json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}});
        object["status"] = self.status();
        if self.chance(20) {
            object["spec"] = self.spec();
        }
        object
    }

    fn metadata(&mut self, metadata: &mut Value) {
        let texts = [json!("1"), json!("2")];
        self.set(metadata, "labels", 50, |source| {
            source.map(&["a", "b", "c"], &texts)
        });
        self.set(metadata, "annotations", 30, |source| {
            source.map(&["a", "x.example/b"], &texts)
        });
        if self.chance(15) {
            // What `kubectl apply` leaves on an object, so that it may later apply on the server's side.
            let mut last =
                json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "x"}});
            last["spec"] = self.spec();
            metadata["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
                last.to_string().into();
        }
        self.set(metadata, "finalizers", 20, |source| {
            // The one shared list in which items may repeat.
            let mut names = source.list(&[json!("example.org/a"), json!("example.org/b")]);
            if source.chance(20) {
                names = json!(["example.org/a", "example.org/b", "example.org/a"]);
            }
            names
        });
        self.set(metadata, "ownerReferences", 10, |source| {
            // Of a kind that does not exist: an owner that the garbage collector could look for and miss would be a reason
            // to delete the object in the middle of its sequence.
            let owner = |uid| json!({"apiVersion": "absent.example.org/v1", "kind": "Owner", "name": "p", "uid": uid});
            source.list(&[owner("u1"), owner("u2")])
        });
        self.set(metadata, "creationTimestamp", 10, |_| Value::Null);
    }

    fn spec(&mut self) -> Value {
        let mut spec = json!({});
        let texts = [json!("1"), json!("2")];
        self.set(&mut spec, "sandbox", 40, Self::sandbox);
        self.set(&mut spec, "free", 30, |source| source.free(3));
        self.set(&mut spec, "set", 40, |source| {
            source.list(&[json!(1), json!(2), json!(3), json!(10)])
        });
        self.set(&mut spec, "rows", 50, Self::rows);
        self.set(&mut spec, "map", 40, |source| {
            source.map(&["a", "b", "c"], &texts)
        });
        self.set(&mut spec, "whole", 30, |source| {
            source.map(&["a", "b"], &texts)
        });
        self.set(&mut spec, "list", 30, |source| {
            source.list(&[json!(1), json!(2)])
        });
        self.set(&mut spec, "amounts", 30, |source| {
            source.map(&["cpu", "memory"], &[json!("1"), json!(2), json!("1Gi")])
        });
        self.set(&mut spec, "number", 30, |source| {
            source.pick(&[json!(1), json!(3), json!(1_000_000)])
        });
        self.set(&mut spec, "flag", 20, |source| {
            source.pick(&[json!(true), json!(false)])
        });
        spec
    }

    fn sandbox(&mut self) -> Value {
        let mut sandbox = json!({"podTemplate": {"spec": {"containers": self.containers()}}});
        let texts = [json!("1"), json!("2")];
        self.set(&mut sandbox, "operatingMode", 30, |source| {
            source.pick(&[json!("Running"), json!("Suspended")])
        });
        self.set(&mut sandbox, "shutdownTime", 20, |source| {
            source.pick(&[json!("2030-01-01T00:00:00Z"), json!("2031-01-01T00:00:00Z")])
        });
        let template = &mut sandbox["podTemplate"];
        self.set(
            template,
            "metadata",
            30,
            |source| json!({"labels": source.map(&["a", "b"], &texts)}),
        );
        let pod = &mut template["spec"];
        self.set(pod, "nodeSelector", 20, |source| {
            source.map(&["a", "b"], &texts)
        });
        self.set(pod, "tolerations", 20, |source| {
            source.list(&[json!({"key": "a"}), json!({"key": "b"})])
        });
        self.set(pod, "securityContext", 20, |source| {
            source.pick(&[json!({}), json!({"runAsUser": 1})])
        });
        self.set(pod, "volumes", 20, |source| {
            let volume = |name| json!({"name": name, "emptyDir": {}});
            source.list(&[volume("a"), volume("b")])
        });
        sandbox
    }

    fn containers(&mut self) -> Value {
        let mut containers = self.list(&[
            json!({"name": "a"}),
            json!({"name": "b"}),
            json!({"name": "c<d"}),
        ]);
        for container in containers.as_array_mut().unwrap() {
            self.set(container, "image", 60, |source| {
                source.pick(&[json!("x"), json!("y")])
            });
            self.set(container, "args", 20, |source| {
                source.list(&[json!("1"), json!("2")])
            });
            self.set(container, "env", 30, |source| {
                let value = source.pick(&["1", "2"]);
                source.list(&[
                    json!({"name": "A", "value": value}),
                    json!({"name": "B", "value": value}),
                ])
            });
            self.set(container, "ports", 30, |source| {
                source.list(&[
                    json!({"containerPort": 80}),
                    json!({"containerPort": 80, "protocol": "UDP"}),
                    json!({"containerPort": 9, "name": "nine"}),
                    json!({"containerPort": 443, "protocol": "TCP"}),
                ])
            });
            self.set(
                container,
                "resources",
                20,
                |source| json!({"limits": source.map(&["cpu", "memory"], &[json!("1"), json!(2)])}),
            );
        }
        containers
    }

    fn rows(&mut self) -> Value {
        let mut rows = self.list(&[
            json!({"id": 1}),
            json!({"id": 1, "zone": "there"}),
            json!({"id": 2, "zone": "here"}),
            json!({"id": 3}),
            json!({"id": 10}),
            json!({"id": 1_000_000}),
        ]);
        for row in rows.as_array_mut().unwrap() {
            self.set(row, "text", 50, |source| {
                source.pick(&[json!("1"), json!("2")])
            });
            self.set(row, "set", 40, |source| {
                source.list(&[json!("a"), json!("b"), json!("é>\t\u{1}")])
            });
        }
        rows
    }

    fn status(&mut self) -> Value {
        let mut status = json!({});
        self.set(&mut status, "conditions", 70, |source| {
            let value = source.pick(&["True", "False"]);
            let condition = |kind| {
                json!({"type": kind, "status": value, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
            };
            source.list(&[condition("A"), condition("B")])
        });
        self.set(&mut status, "nodeName", 50, |source| {
            source.pick(&[json!("n1"), json!("n2")])
        });
        self.set(&mut status, "podIPs", 30, |source| {
            source.list(&[json!("10.0.0.1"), json!("10.0.0.2")])
        });
        status
    }

    fn free(&mut self, depth: usize) -> Value {
        match self.0.random_range(0..8) {
            0 | 1 if depth > 0 => self.list(&[json!(1), json!({"a": 1}), json!([])]),
            2..=5 if depth > 0 => {
                let mut map = Map::new();
                for name in ["a", "b"] {
                    if self.chance(60) {
                        map.insert(name.to_owned(), self.free(depth - 1));
                    }
                }
                map.into()
            }
            _ => self.pick(&[json!(1), json!(1.5), json!("a"), json!(true), json!(null)]),
        }
    }

    /// Sets the field with a probability in percent, and now and then to null.
    fn set(
        &mut self,
        object: &mut Value,
        name: &str,
        percent: u32,
        value: impl FnOnce(&mut Self) -> Value,
    ) {
        if self.chance(percent) {
            object[name] = if self.chance(3) {
                Value::Null
            } else {
                value(self)
            };
        }
    }

    /// Some of the keys.
    fn map(&mut self, keys: &[&str], values: &[Value]) -> Value {
        let chosen = keys
            .iter()
            .filter(|_| self.0.random_ratio(1, 2))
            .copied()
            .collect::<Vec<_>>();
        let entries = chosen
            .into_iter()
            .map(|key| (key.to_owned(), self.pick(values)));
        Value::Object(entries.collect())
    }

    /// Some of the items, in any order.
    fn list(&mut self, items: &[Value]) -> Value {
        let mut chosen: Vec<Value> = items
            .iter()
            .filter(|_| self.0.random_ratio(1, 2))
            .cloned()
            .collect();
        chosen.shuffle(self.0);
        chosen.into()
    }

    /// Makes the object one that a configuration must not be.
    fn spoil(&mut self, object: &mut Value) {
        match self.0.random_range(0..8) {
            0 => object["spec"]["unknown"] = json!(1),
            1 => object["spec"]["map"] = self.pick(&[json!(1), json!(["a"]), json!({"a": 1})]),
            2 => {
                object["spec"]["number"] =
                    self.pick(&[json!("1"), json!(true), json!({}), json!([])])
            }
            3 => object["spec"]["set"] = json!([1, 2, 1]),
            4 => {
                object["spec"]["rows"] = self.pick(&[
                    json!([{"id": 1}, {"id": 1, "zone": "here"}]),
                    json!([1]),
                    json!([null]),
                ])
            }
            5 => {
                object["spec"]["flag"] = self.pick(&[json!(1), json!("x"), json!({"a": [1, "b"]})])
            }
            6 => {
                object["spec"]["list"] = self.pick(&[json!({"a": 1}), json!("a"), json!([1, "2"])])
            }
            _ => object["metadata"]["labels"] = self.pick(&[json!({"a": 1}), json!("a")]),
        }
    }
}
