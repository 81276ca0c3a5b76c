//! The room as its callers use it, on a type that embeds a PodSpec.

use k8s_openapi::{api::core::v1::PodSpec, apimachinery::pkg::apis::meta::v1::Condition};
use proptest::prelude::*;
use schemars::JsonSchema;
use serde_json::{Value, json};

use super::*;

/// What the tests' objects are asked to be.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "read by the derive")]
pub(super) struct ThingSpec {
    /// How it runs.
    #[schemars(extend("default" = "Running"))]
    mode: Mode,
    /// How many there are.
    #[schemars(range(min = 0, max = 5))]
    count: Option<i32>,
    /// When it ends.
    #[schemars(extend("format" = "date-time"))]
    ends: Option<String>,
    /// Names without repetition.
    #[schemars(extend("x-kubernetes-list-type" = "set"), length(max = 3))]
    names: Option<Vec<String>>,
    /// Numbers by name.
    numbers: Option<std::collections::BTreeMap<String, i64>>,
    /// What it looks like.
    pod: PodSpec,
}

/// How a thing runs.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "read by the derive")]
enum Mode {
    /// It runs.
    Running,
    /// It waits.
    Suspended,
}

/// What is known of the tests' objects.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "read by the derive")]
pub(super) struct ThingStatus {
    /// The conditions.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    conditions: Option<Vec<Condition>>,
}

pub(super) fn mk_type() -> TypeSchema {
    TypeSchema::spec_and_status::<ThingSpec, ThingStatus>("A thing.").unwrap()
}

fn mk_schema() -> Schema {
    static SCHEMA: std::sync::OnceLock<Schema> = std::sync::OnceLock::new();
    SCHEMA.get_or_init(|| mk_type().compile().unwrap()).clone()
}

/// A typical object with a container, its ports, environment, mounts and resources.
fn mk_thing() -> Value {
    json!({
        "apiVersion": "example.org/v1",
        "kind": "Thing",
        "metadata": { "name": "a", "namespace": "n", "labels": { "app": "a" } },
        "spec": { "mode": "Running", "count": 1, "pod": {
            "containers": [{
                "name": "main",
                "image": "registry.example.org/team/image:1.2.3",
                "command": ["/bin/sh", "-c", "sleep 1"],
                "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }, { "name": "C", "value": "3" }],
                "ports": [{ "containerPort": 8080, "protocol": "TCP", "name": "http" }],
                "resources": { "requests": { "cpu": "500m", "memory": "1Gi" }, "limits": { "cpu": 2, "memory": "4Gi" } },
                "volumeMounts": [{ "mountPath": "/data", "name": "data" }],
                "readinessProbe": { "httpGet": { "path": "/", "port": "http" }, "periodSeconds": 5 },
            }],
            "volumes": [{ "name": "data", "emptyDir": {} }],
            "nodeSelector": { "kubernetes.io/os": "linux" },
            "tolerations": [{ "key": "a", "operator": "Exists" }],
        } },
    })
}

/// `mk_thing` with `value` at `pointer`.
fn with(pointer: &str, value: Value) -> Value {
    let mut thing = mk_thing();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match thing.pointer_mut(parent).unwrap() {
        Value::Array(items) => items[field.parse::<usize>().unwrap()] = value,
        object => object[field] = value,
    }
    thing
}

#[track_caller]
fn causes(object: Value, expected: &[(&str, &str)]) {
    let mut object = object;
    let report = mk_schema().admit(&mut object);
    let found: Vec<(&str, String)> = report
        .causes
        .iter()
        .map(|cause| (cause.reason.as_str(), cause.to_string()))
        .collect();
    let found: Vec<(&str, &str)> = found
        .iter()
        .map(|(reason, text)| (*reason, text.as_str()))
        .collect();
    assert_eq!(found, expected);
}

#[track_caller]
fn admitted(object: Value, unknown: &[&str], expected: Value) {
    let mut object = object;
    let report = mk_schema().admit(&mut object);
    assert_eq!(report.causes, []);
    assert_eq!(report.unknown, unknown);
    assert_eq!(object, expected);
}

#[test]
fn an_object_without_faults_is_unchanged() {
    admitted(mk_thing(), &[], mk_thing());
}

#[test]
fn unknown_fields_are_dropped_and_named() {
    let mut thing = with("/spec/pod/containers/0/nope", json!({ "a": [1] }));
    thing["metadata"]["nope"] = json!(1);
    thing["spec"]["zzz"] = json!(null);
    thing["nope"] = json!([]);
    let unknown = [
        "metadata.nope",
        "nope",
        "spec.pod.containers[0].nope",
        "spec.zzz",
    ];
    admitted(thing, &unknown, mk_thing());
}

#[test]
fn fields_of_what_should_have_none_are_dropped_too() {
    let mut thing = with("/spec/count", json!({ "a": 1 }));
    thing["spec"]["pod"]["containers"][0]["image"] = json!([{ "b": 1 }]);
    let report = mk_schema().admit(&mut thing);
    assert_eq!(
        report.unknown,
        ["spec.count.a", "spec.pod.containers[0].image[0].b"]
    );
    assert_eq!(report.causes.len(), 2);
}

#[test]
fn absent_fields_take_their_defaults_at_any_depth() {
    let mut thing = mk_thing();
    thing["spec"].as_object_mut().unwrap().remove("mode");
    thing["spec"]["pod"]["containers"][0]["ports"][0]
        .as_object_mut()
        .unwrap()
        .remove("protocol");
    admitted(thing, &[], mk_thing());
}

#[test]
fn a_null_is_an_absent_field() {
    let mut thing = with("/metadata/creationTimestamp", json!(null));
    thing["spec"]["mode"] = json!(null);
    thing["spec"]["numbers"] = json!(null);
    thing["spec"]["pod"]["nodeSelector"]["gone"] = json!(null);
    thing["spec"]["pod"]["containers"][0]["ports"][0]["protocol"] = json!(null);
    admitted(thing, &[], mk_thing());
}

#[test]
fn managed_fields_are_kept_whole() {
    let thing = with(
        "/metadata/managedFields",
        json!([{
            "manager": "m", "operation": "Update", "apiVersion": "example.org/v1", "time": "2026-11-29T23:10:02Z",
            "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { "f:mode": {} } },
        }]),
    );
    admitted(thing.clone(), &[], thing);
}

#[test]
fn wrong_types_are_named_as_the_api_names_them() {
    let invalid = "FieldValueTypeInvalid";
    causes(
        with("/spec/count", json!("x")),
        &[(
            invalid,
            r#"spec.count: Invalid value: "string": spec.count in body must be of type integer: "string""#,
        )],
    );
    causes(
        with("/spec/count", json!(1.5)),
        &[(
            invalid,
            r#"spec.count: Invalid value: "float64": spec.count in body must be of type int32: "float64""#,
        )],
    );
    causes(
        with("/spec/count", json!(true)),
        &[(
            invalid,
            r#"spec.count: Invalid value: "": spec.count in body must be of type int32: """#,
        )],
    );
    causes(
        with("/spec/ends", json!("yesterday")),
        &[(
            invalid,
            r#"spec.ends: Invalid value: "yesterday": spec.ends in body must be of type date-time: "yesterday""#,
        )],
    );
    causes(
        with("/spec/pod/containers/0", json!("x")),
        &[
            (
                "FieldValueInvalid",
                r#"spec.pod.containers[0]: Invalid value: "x": must be an object for an array of list-type map"#,
            ),
            (
                invalid,
                r#"spec.pod.containers[0]: Invalid value: "string": spec.pod.containers[0] in body must be of type object: "string""#,
            ),
        ],
    );
    causes(
        with("/spec/pod/containers/0/resources/limits/cpu", json!([])),
        &[(
            invalid,
            r#"spec.pod.containers[0].resources.limits.cpu: Invalid value: "array": spec.pod.containers[0].resources.limits.cpu in body must be of type integer,string: "array""#,
        )],
    );
}

#[test]
fn missing_and_unsupported_values_are_named() {
    let mut thing = mk_thing();
    thing["spec"] = json!({ "mode": "Flying" });
    causes(
        thing,
        &[
            ("FieldValueRequired", "spec.pod: Required value"),
            (
                "FieldValueNotSupported",
                r#"spec.mode: Unsupported value: "Flying": supported values: "Running", "Suspended""#,
            ),
        ],
    );
    let mut thing = mk_thing();
    thing.as_object_mut().unwrap().remove("spec");
    causes(thing, &[("FieldValueRequired", "spec: Required value")]);
}

#[test]
fn ranges_lengths_and_patterns_are_checked() {
    let invalid = "FieldValueInvalid";
    causes(
        with("/spec/count", json!(-1)),
        &[(
            invalid,
            "spec.count: Invalid value: -1: spec.count in body should be greater than or equal to 0",
        )],
    );
    causes(
        with("/spec/count", json!(1_i64 << 40)),
        &[
            (
                invalid,
                "spec.count: Invalid value: 1099511627776: Checked value must be of type integer with format int32 in spec.count",
            ),
            (
                invalid,
                "spec.count: Invalid value: 1099511627776: spec.count in body should be less than or equal to 5",
            ),
        ],
    );
    causes(
        with("/spec/names", json!(["a", "b", "c", "d"])),
        &[(
            "FieldValueTooMany",
            "spec.names: Too many: 4: must have at most 3 items",
        )],
    );
    let mut thing = mk_thing();
    thing["spec"]["pod"]["containers"][0]["resources"]["limits"]["cpu"] = json!("many");
    let found = mk_schema().validate(&thing);
    assert_eq!(found.len(), 1);
    assert!(found[0].message.contains(
        r#""many": spec.pod.containers[0].resources.limits.cpu in body should match '^"#
    ));
}

#[test]
fn items_known_by_a_key_come_once() {
    let duplicate = "FieldValueDuplicate";
    causes(
        with("/spec/names", json!(["a", "b", "a"])),
        &[(duplicate, r#"spec.names[2]: Duplicate value: "a""#)],
    );
    let ports = json!([{ "containerPort": 80 }, { "containerPort": 80, "protocol": "UDP" }, { "containerPort": 80 }]);
    causes(
        with("/spec/pod/containers/0/ports", ports),
        &[(
            duplicate,
            r#"spec.pod.containers[0].ports[2]: Duplicate value: {"containerPort":80,"protocol":"TCP"}"#,
        )],
    );
    let environment = json!([{ "name": "A" }, { "name": "A" }, { "name": "A" }]);
    causes(
        with("/spec/pod/containers/0/env", environment),
        &[(
            duplicate,
            r#"spec.pod.containers[0].env[1]: Duplicate value: {"name":"A"}"#,
        )],
    );
}

#[test]
fn metadata_may_repeat_finalizers_and_owners() {
    causes(with("/metadata/finalizers", json!(["a/b", "a/b"])), &[]);
}

#[test]
fn causes_are_bounded_and_quick_on_hostile_lists() {
    let items: Vec<Value> = (0..100_000).map(|_| json!({ "name": 1 })).collect();
    let mut thing = with("/spec/pod/containers/0/env", json!(items));
    let started = std::time::Instant::now();
    assert_eq!(mk_schema().admit(&mut thing).causes.len(), MAX_CAUSES);
    assert!(started.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn lists_and_maps_say_how_they_merge() {
    let schema = mk_schema();
    let list = |path: &[&str]| schema.at(path).and_then(NodeRef::list_type);
    let keys = |path: &[&str]| match list(path) {
        Some(ListType::Map(keys)) => keys.iter().map(ToString::to_string).collect(),
        other => vec![format!("{other:?}")],
    };
    let container = ["spec", "pod", "containers", "[]"];
    let below = |field| [&container[..], &[field]].concat();
    assert_eq!(keys(&container[..3]), ["name"]);
    assert_eq!(keys(&below("ports")), ["containerPort", "protocol"]);
    assert_eq!(keys(&below("env")), ["name"]);
    assert_eq!(keys(&below("volumeMounts")), ["mountPath"]);
    assert_eq!(keys(&["metadata", "ownerReferences"]), ["uid"]);
    assert_eq!(list(&["metadata", "finalizers"]), Some(ListType::Set));
    assert_eq!(
        list(&["spec", "pod", "tolerations"]),
        Some(ListType::Atomic)
    );
    assert_eq!(list(&["spec", "pod"]), None);
    let map = |path: &[&str]| schema.at(path).and_then(NodeRef::map_type);
    assert_eq!(map(&["spec", "pod", "nodeSelector"]), Some(MapType::Atomic));
    assert_eq!(map(&["metadata", "labels"]), Some(MapType::Granular));
    let port = schema.at(&[&below("ports")[..], &["[]"]].concat()).unwrap();
    assert_eq!(port.default_of("protocol"), Some(&json!("TCP")));
}

#[test]
fn a_type_that_contains_itself_is_a_cycle() {
    #[derive(JsonSchema)]
    #[schemars(rename = "io.k8s.Tree")]
    #[allow(dead_code, reason = "read by the derive")]
    struct Tree {
        left: Option<Box<Tree>>,
        #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
        right: Option<Box<Tree>>,
    }
    let schema = TypeSchema::of::<Tree>().unwrap().compile().unwrap();
    let mut value = json!({ "left": { "right": { "right": { "left": {}, "nope": 1 } } } });
    assert_eq!(schema.admit(&mut value).unknown, ["left.right.right.nope"]);
    let map = |path: &[&str]| schema.at(path).and_then(NodeRef::map_type);
    assert_eq!(map(&["right", "left"]), Some(MapType::Granular));
    assert_eq!(map(&["left", "right"]), Some(MapType::Atomic));
}

#[test]
fn what_the_dialect_cannot_say_is_an_error() {
    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "read by the derive")]
    enum Shape {
        Circle(u32),
        Square { side: u32 },
    }
    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "read by the derive")]
    struct Chain {
        next: Option<Box<Chain>>,
    }
    assert!(matches!(
        TypeSchema::of::<Shape>(),
        Err(Error::Unsupported(_))
    ));
    assert!(matches!(
        TypeSchema::of::<Chain>(),
        Err(Error::Recursive(_))
    ));
}

#[test]
fn duplicates_are_found_at_any_depth_and_the_last_is_kept() {
    let decoded =
        decode_json(br#"{"a":1,"b":[{"c":1,"c":2}],"a":{"d":1},"a":{"d":1,"d":2}}"#).unwrap();
    assert_eq!(decoded.value, json!({ "a": { "d": 2 }, "b": [{ "c": 2 }] }));
    assert_eq!(decoded.duplicates, ["b[0].c", "a", "a.d"]);
    let decoded = decode_yaml(b"a: 1\nb:\n- c: x\n  c: z\n").unwrap();
    assert_eq!(decoded.value, json!({ "a": 1, "b": [{ "c": "z" }] }));
    assert_eq!(decoded.duplicates, ["b[0].c"]);
}

#[test]
fn bodies_that_are_not_one_value_are_refused() {
    for bad in ["", "{", "{} {}", r#"{"a":}"#, "nul"] {
        assert!(decode_json(bad.as_bytes()).is_err(), "{bad}");
    }
    assert!(decode_json("[".repeat(100_000).as_bytes()).is_err());
    for bad in ["a: [", "a: 1\n---\nb: 2\n", "a: .nan\n", "a: &x [*x]\n"] {
        assert!(decode_yaml(bad.as_bytes()).is_err(), "{bad}");
    }
    assert!(decode_yaml("[".repeat(100_000).as_bytes()).is_err());
    let bomb: String = (0..30)
        .map(|level| format!("a{level}: &a{level} [*a{0}, *a{0}]\n", level - 1))
        .collect();
    assert!(decode_yaml(format!("a-1: &a-1 x\n{bomb}").as_bytes()).is_err());
}

#[test]
fn yaml_words_have_the_types_that_kubernetes_gives_them() {
    let body = b"a: yes\nb: y\nc: ~\nd: 010\ne: 1.5\nf: '1'\ng: 1e3\nh: 2001-01-01\n8080: x\n";
    let expected = json!({
        "a": true, "b": true, "c": null, "d": 8, "e": 1.5, "f": "1", "g": 1000, "h": "2001-01-01", "8080": "x",
    });
    assert_eq!(decode_yaml(body).unwrap().value, expected);
}

#[test]
fn metadata_is_checked_beyond_its_schema() {
    let object = json!({ "metadata": {
        "name": "-a", "generateName": "AA-", "labels": { "a": "b c", "/x": "" },
        "annotations": { "Example.org/a": "fine", "big": "x".repeat(MAX_ANNOTATIONS_BYTES) },
        "ownerReferences": [
            { "apiVersion": "v1", "kind": "A", "name": "a", "uid": "1", "controller": true },
            { "apiVersion": "a/b/c", "kind": "B", "name": "", "uid": "2", "controller": true },
        ],
        "finalizers": ["orphan", "foregroundDeletion", "not ok"],
    } });
    let found: Vec<(Reason, String)> = validate_object_meta(&object, true)
        .into_iter()
        .map(|cause| (cause.reason, cause.field))
        .collect();
    let expected = [
        (Reason::Invalid, "metadata.generateName"),
        (Reason::Invalid, "metadata.name"),
        (Reason::Required, "metadata.namespace"),
        (Reason::Invalid, "metadata.labels"),
        (Reason::Invalid, "metadata.labels"),
        (Reason::TooLong, "metadata.annotations"),
        (Reason::Required, "metadata.ownerReferences[1].name"),
        (Reason::Invalid, "metadata.ownerReferences[1].apiVersion"),
        (Reason::Invalid, "metadata.ownerReferences"),
        (Reason::Invalid, "metadata.finalizers"),
        (Reason::Invalid, "metadata.finalizers"),
    ];
    assert_eq!(
        found,
        expected.map(|(reason, field)| (reason, field.to_owned()))
    );
    let named = json!({ "metadata": { "name": "a", "namespace": "n", "generateName": "a-" } });
    assert_eq!(validate_object_meta(&named, true), []);
    for (base, is_one) in [
        ("a.b-", true),
        (&"b".repeat(253), true),
        (&"b".repeat(254), false),
        ("a.", false),
        ("-", false),
        ("é-", false),
        ("aé", false),
    ] {
        let metadata = json!({ "name": "a", "namespace": "n", "generateName": base });
        let causes = validate_object_meta(&json!({ "metadata": metadata }), true);
        assert_eq!(causes.is_empty(), is_one, "{base}");
    }
    assert_eq!(
        validate_object_meta(&named, false)[0].message,
        "Forbidden: not allowed on this type"
    );
    assert_eq!(
        validate_object_meta(&json!({}), false)[0].message,
        "Required value: name or generateName is required"
    );
}

#[test]
fn equal_owners_become_one() {
    let owner = json!({ "apiVersion": "v1", "kind": "A", "name": "a", "uid": "1" });
    let other = json!({ "apiVersion": "v1", "kind": "A", "name": "b", "uid": "1" });
    let mut object = json!({ "metadata": { "ownerReferences": [owner, other, owner] } });
    assert_eq!(merge_equal_owners(&mut object), ["1"]);
    assert_eq!(object["metadata"]["ownerReferences"], json!([owner, other]));
    assert!(merge_equal_owners(&mut object).is_empty());
}

/// Any JSON, with names that the schema knows among its keys.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        proptest::sample::select(vec![
            "apiVersion",
            "metadata",
            "spec",
            "status",
            "mode",
            "count",
            "names",
            "numbers",
            "pod",
            "containers",
            "ports",
            "env",
            "name",
            "labels",
            "conditions",
            "resources",
            "limits",
            "ownerReferences",
            "fieldsV1",
        ])
        .prop_map(str::to_owned),
        ".{0,4}",
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// The value with its whole numbers as integers.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => {
                json!(float as i64)
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(rounded).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            fields.map(|(name, value)| (name, rounded(value))).collect()
        }
        other => other,
    }
}

proptest! {
    #[test]
    fn pruning_and_defaulting_twice_changes_nothing(value in any_json()) {
        let schema = mk_schema();
        let mut once = json!({ "spec": value.clone(), "metadata": value.clone(), "status": value });
        schema.admit(&mut once);
        validate_object_meta(&once, true);
        merge_equal_owners(&mut once.clone());
        let mut twice = once.clone();
        prop_assert_eq!(schema.admit(&mut twice).unknown, Vec::<String>::new());
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn decoding_agrees_with_serde_json(value in any_json()) {
        let text = value.to_string();
        let decoded = decode_json(text.as_bytes()).unwrap();
        prop_assert_eq!(decoded.value, rounded(serde_json::from_str(&text).unwrap()));
        prop_assert!(decoded.duplicates.is_empty());
    }

    #[test]
    fn no_body_stops_the_decoders(body in proptest::collection::vec(any::<u8>(), 0..64)) {
        let json = decode_json(&body);
        prop_assert_eq!(json.is_ok(), serde_json::from_slice::<Value>(&body).is_ok());
        let _ = decode_yaml(&body);
    }
}

/// Prints what one create costs: `cargo test --release --lib schema::tests::admit_speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn admit_speed() {
    let started = std::time::Instant::now();
    let schema = mk_type();
    let typed = started.elapsed();
    let schema = schema.compile().unwrap();
    eprintln!("type {typed:?}, compile {:?}", started.elapsed() - typed);
    let body = mk_thing().to_string();
    let mut thing = mk_thing();
    const ROUNDS: u32 = 10_000;
    let started = std::time::Instant::now();
    for _ in 0..ROUNDS {
        assert!(schema.admit(&mut thing).causes.is_empty());
    }
    eprintln!("admit {:?}", started.elapsed() / ROUNDS);
    let started = std::time::Instant::now();
    for _ in 0..ROUNDS {
        assert!(decode_json(body.as_bytes()).unwrap().duplicates.is_empty());
    }
    eprintln!(
        "decode {} bytes {:?}",
        body.len(),
        started.elapsed() / ROUNDS
    );
}
