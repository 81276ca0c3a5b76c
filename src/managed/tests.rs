//! Properties that hold for any objects, and cases with names.

use proptest::prelude::*;
use schemars::JsonSchema;
use serde_json::{Value, json};

use super::*;
use crate::{
    meta::UnixTime,
    schema::{Schema, TypeSchema},
};

const V1: &str = "example.org/v1";
const NOW: UnixTime = UnixTime::from_secs(1_000);

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct Spec {
    a: Option<i64>,
    b: Option<String>,
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    free: Option<Value>,
    map: Option<std::collections::BTreeMap<String, String>>,
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    set: Option<Vec<i64>>,
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id", "zone"]))]
    rows: Option<Vec<Row>>,
    list: Option<Vec<i64>>,
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct Row {
    id: i64,
    #[schemars(extend("default" = "here"))]
    zone: Option<String>,
    text: Option<String>,
}

#[derive(JsonSchema)]
struct Status {}

fn schema() -> Schema {
    let schema = TypeSchema::spec_and_status::<Spec, Status>("A test.");
    schema.unwrap().compile().unwrap()
}

fn endpoint(schema: &Schema) -> Endpoint<'_> {
    Endpoint {
        version: Version {
            api_version: V1,
            schema,
        },
        other_versions: &[],
        convert: &|object, _| object.clone(),
        kind: "Test",
        subresource: "",
        reset: &["status"],
    }
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": V1, "kind": "Test", "metadata": {"name": "t"}, "spec": spec})
}

fn applied(
    schema: &Schema,
    live: Option<&Value>,
    spec: Value,
    manager: &str,
    force: bool,
) -> Result<Value> {
    endpoint(schema).apply(live, &object(spec), manager, force, NOW)
}

fn updated(
    schema: &Schema,
    before: Option<&Value>,
    spec: Value,
    manager: &str,
    now: UnixTime,
) -> Value {
    let mut after = before.cloned().unwrap_or_else(|| object(json!({})));
    after["spec"] = spec;
    endpoint(schema).track_update(before, &mut after, manager, now);
    after
}

/// Who owns what, in short: `one Apply: .spec.a …`.
fn owners(object: &Value) -> Vec<String> {
    let managed = ManagedFields::decode(&object["metadata"]["managedFields"]).unwrap();
    let mut owners: Vec<String> = managed
        .entries()
        .iter()
        .map(|entry| {
            let fields = format!("{:?}", entry.fields);
            let Manager {
                name, operation, ..
            } = &entry.manager;
            format!(
                "{name} {operation:?}: {}",
                fields.trim_end().replace('\n', " ")
            )
        })
        .collect();
    owners.sort();
    owners
}

#[track_caller]
fn set(paths: &Value) -> FieldSet {
    FieldSet::from_value(paths).unwrap()
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..20).prop_map(Value::from),
        prop::sample::select(vec![0.1, -0.0, 1.0, 1e6, 1e300, 1e-300]).prop_map(Value::from),
        "[a-c<\"]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Names of fields that the schema knows, and others.
fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "a",
        "b",
        "free",
        "map",
        "set",
        "rows",
        "list",
        "id",
        "zone",
        "text",
        "spec",
        "status",
        "metadata",
        "name",
        "labels",
        "managedFields",
        "finalizers",
        "apiVersion",
        "kind",
        "other",
    ])
    .prop_map(str::to_owned)
}

/// A spec that has its types. An empty list of shared items asks for nothing, so that nobody owns it: there is none.
fn spec() -> impl Strategy<Value = Value> {
    let small = || prop::sample::select(vec!["1", "2"]).prop_map(Value::from);
    let rows =
        prop::collection::btree_map((1_i64..4, any::<bool>()), prop::option::of(small()), 1..4);
    let fields = (
        prop::option::of((0_i64..3).prop_map(Value::from)),
        prop::option::of(small()),
        prop::option::of(any_json()),
        prop::option::of(prop::collection::btree_map("[x-z]", small(), 0..3)),
        prop::option::of(prop::collection::btree_set(0_i64..4, 1..3)),
        prop::option::of(rows),
        prop::option::of(prop::collection::vec(0_i64..3, 0..3)),
    );
    fields.prop_map(|(a, b, free, map, set, rows, list)| {
        let rows = rows.map(|rows| {
            let row = |((id, there), text): ((i64, bool), Option<Value>)| {
                let mut row = json!({ "id": id });
                if there {
                    row["zone"] = json!("there");
                }
                if let Some(text) = text {
                    row["text"] = text;
                }
                row
            };
            rows.into_iter().map(row).collect::<Value>()
        });
        let fields = [
            ("a", a),
            ("b", b),
            ("free", free),
            ("map", map.map(|map| json!(map))),
            ("set", set.map(|set| json!(set))),
            ("rows", rows),
            ("list", list.map(|list| json!(list))),
        ];
        let given = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(given.collect())
    })
}

fn field_set() -> impl Strategy<Value = FieldSet> {
    let element = prop_oneof![
        "[a-c<.]{0,2}".prop_map(|name| Element::Field(name.into())),
        (0_i64..12).prop_map(|id| Element::Key([("id".into(), id.into())].into())),
        any_json().prop_map(Element::Value),
        (0_i64..12).prop_map(Element::Index),
    ];
    let paths = prop::collection::vec(prop::collection::vec(element, 1..4), 0..8);
    paths.prop_map(|paths| {
        let mut set = FieldSet::default();
        paths.iter().for_each(|path| set.insert(path));
        set
    })
}

proptest! {
    #[test]
    fn sets_obey_the_laws_of_sets(left in field_set(), right in field_set()) {
        let mut union = left.clone();
        union.unite(right.clone());
        let mut difference = left.clone();
        difference.subtract(&right);
        let both = left.intersection(&right);
        for path in union.paths() {
            let (in_left, in_right) = (left.contains(&path), right.contains(&path));
            prop_assert!(in_left || in_right);
            prop_assert_eq!(both.contains(&path), in_left && in_right);
            prop_assert_eq!(difference.contains(&path), in_left && !in_right);
        }
        prop_assert_eq!(&right.intersection(&left), &both);
        prop_assert_eq!(left.is_within(&right), difference.is_empty());
        let mut whole = difference;
        whole.unite(both);
        prop_assert_eq!(whole, left);
    }

    #[test]
    fn leaves_are_what_nothing_is_below(set in field_set()) {
        let leaves = set.leaves();
        for path in set.paths() {
            let is_above = set.paths().iter().any(|other| other.len() > path.len() && other.starts_with(&path));
            prop_assert_eq!(leaves.contains(&path), !is_above);
        }
    }

    #[test]
    fn sets_read_back_as_they_were_written(set in field_set()) {
        prop_assert_eq!(&FieldSet::from_value(&set.to_value()).unwrap(), &set);
        // Both forms differ in the order of keys alone.
        prop_assert_eq!(serde_json::to_value(&set).unwrap(), set.to_value());
    }

    #[test]
    fn nothing_panics(live in any_json(), config in any_json(), before in any_json(), force: bool) {
        let schema = schema();
        let whole = |spec: &Value| {
            let mut whole = object(spec.clone());
            whole["metadata"]["managedFields"] = spec["managedFields"].clone();
            whole
        };
        let kubectl = "kubectl";
        for (live, config) in [(live.clone(), config.clone()), (whole(&live), object(config))] {
            let _ = endpoint(&schema).apply(Some(&live), &config, kubectl, force, NOW);
            let mut after = config.clone();
            endpoint(&schema).track_update(Some(&before), &mut after, "one", NOW);
            endpoint(&schema).track_update(None, &mut after, "one", NOW);
            keep_times(&live, &mut after);
        }
        let _ = ManagedFields::decode(&live);
    }

    #[test]
    fn applying_again_changes_nothing(first in spec(), second in spec()) {
        let schema = schema();
        let live = applied(&schema, None, first, "one", false).unwrap();
        let once = applied(&schema, Some(&live), second.clone(), "two", true).unwrap();
        let again = applied(&schema, Some(&once), second, "two", false).unwrap();
        prop_assert_eq!(once, again);
    }

    #[test]
    fn force_gives_what_was_asked_for(first in spec(), second in spec()) {
        let schema = schema();
        let live = updated(&schema, None, first, "one", NOW);
        let forced = applied(&schema, Some(&live), second.clone(), "two", true).unwrap();
        // A new object has all of it, so a configuration laid over the live object again must change nothing.
        let again = applied(&schema, Some(&forced), second, "three", false);
        prop_assert!(again.is_ok(), "{:?}", again);
        let (forced, again) = (&forced["spec"], &again.unwrap()["spec"]);
        prop_assert_eq!(forced, again);
    }

    #[test]
    fn appliers_of_different_fields_do_not_meet(first in spec(), second in spec()) {
        let schema = schema();
        let part = |spec: &Value, names: &[&str]| {
            let fields = spec.as_object().unwrap().iter();
            Value::Object(fields.filter(|(name, _)| names.contains(&name.as_str())).map(|(name, value)| (name.clone(), value.clone())).collect())
        };
        let one = part(&first, &["a", "map", "rows"]);
        let two = part(&second, &["b", "free", "set", "list"]);
        let either = |first: (&str, &Value), second: (&str, &Value)| {
            let live = applied(&schema, None, first.1.clone(), first.0, false).unwrap();
            let live = applied(&schema, Some(&live), second.1.clone(), second.0, false).unwrap();
            (owners(&live), live["spec"].clone())
        };
        prop_assert_eq!(either(("one", &one), ("two", &two)), either(("two", &two), ("one", &one)));
    }

    #[test]
    fn what_a_manager_stops_applying_is_gone(first in spec()) {
        let schema = schema();
        let live = applied(&schema, None, first, "one", false).unwrap();
        let mut left = applied(&schema, Some(&live), json!({}), "one", false).unwrap();
        schema.default(&mut left);
        prop_assert!(owners(&left).iter().all(|owner| owner == "one Apply: .spec"), "{:?}", owners(&left));
        prop_assert!(left.get("spec").is_none_or(|spec| spec == &json!({})), "{}", left);
    }
}

#[test]
fn a_create_owns_every_field_and_what_holds_it() {
    let schema = schema();
    let made = updated(
        &schema,
        None,
        json!({"a": 1, "rows": [{"id": 1, "zone": "here"}], "list": [1]}),
        "one",
        NOW,
    );
    assert_eq!(
        made["metadata"]["managedFields"],
        json!([{
            "apiVersion": V1,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {
                ".": {},
                "f:a": {},
                "f:list": {},
                "f:rows": {".": {}, "k:{\"id\":1,\"zone\":\"here\"}": {".": {}, "f:id": {}, "f:zone": {}}},
            }},
            "manager": "one",
            "operation": "Update",
            "time": "1970-01-01T00:16:40Z",
        }])
    );
}

#[test]
fn an_update_takes_what_it_changes_and_frees_what_it_removes() {
    let schema = schema();
    let live = updated(
        &schema,
        None,
        json!({"a": 1, "b": "1", "list": [1]}),
        "one",
        NOW,
    );
    let live = updated(&schema, Some(&live), json!({"a": 2, "b": "1"}), "two", NOW);
    assert_eq!(
        owners(&live),
        ["one Update: .spec .spec.b", "two Update: .spec.a"]
    );
}

#[test]
fn a_time_stays_while_nothing_is_taken() {
    let schema = schema();
    let live = updated(&schema, None, json!({"a": 1, "b": "1"}), "one", NOW);
    let later = UnixTime::from_secs(2_000);
    let same = updated(&schema, Some(&live), json!({"b": "1"}), "one", later);
    assert_eq!(
        same["metadata"]["managedFields"][0]["time"],
        "1970-01-01T00:16:40Z"
    );
    let taken = updated(
        &schema,
        Some(&live),
        json!({"a": 2, "b": "1"}),
        "one",
        later,
    );
    assert_eq!(
        taken["metadata"]["managedFields"][0]["time"],
        "1970-01-01T00:33:20Z"
    );
}

#[test]
fn an_object_without_owners_gets_none_by_an_update_and_one_by_an_apply() {
    let schema = schema();
    let bare = object(json!({"a": 1}));
    let live = updated(&schema, Some(&bare), json!({"a": 2}), "one", NOW);
    assert_eq!(owners(&live), [""; 0]);
    let live = applied(&schema, Some(&bare), json!({"b": "1"}), "one", false).unwrap();
    assert_eq!(
        owners(&live),
        [
            "before-first-apply Update: .spec .spec.a",
            "one Apply: .spec.b"
        ]
    );
}

#[test]
fn owners_stay_when_a_client_leaves_them_out_and_go_when_it_says_so() {
    let schema = schema();
    let live = updated(&schema, None, json!({"a": 1}), "one", NOW);
    let put = |sent: Value| {
        let mut after = live.clone();
        after["metadata"]["managedFields"] = sent;
        endpoint(&schema).track_update(Some(&live), &mut after, "two", NOW);
        owners(&after)
    };
    assert_eq!(put(json!(null)), ["one Update: .spec .spec.a"]);
    assert_eq!(put(json!([])), ["one Update: .spec .spec.a"]);
    assert_eq!(
        put(json!([{"manager": "x"}])),
        ["one Update: .spec .spec.a"]
    );
    assert_eq!(put(json!([{}])), [""; 0]);
}

#[test]
fn conflicts_name_the_owner_and_the_field() {
    let schema = schema();
    let live = updated(
        &schema,
        None,
        json!({"a": 1, "rows": [{"id": 10, "text": "1"}]}),
        "one",
        NOW,
    );
    let live = applied(&schema, Some(&live), json!({"b": "1"}), "two", false).unwrap();
    let refused = applied(&schema, Some(&live), json!({"a": 2}), "three", false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 1 conflict: conflict with \"one\" using example.org/v1: .spec.a"
    );
    let config = json!({"a": 2, "b": "2", "rows": [{"id": 10, "text": "2"}]});
    let refused = applied(&schema, Some(&live), config, "three", false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"one\" using example.org/v1:\n- .spec.a\n\
         - .spec.rows[id=10,zone=\"here\"].text\nconflicts with \"two\":\n- .spec.b"
    );
}

#[test]
fn a_configuration_that_cannot_be_merged_is_refused_as_kubernetes_does() {
    let schema = schema();
    let refused = |spec: Value| {
        applied(&schema, None, spec, "one", false)
            .unwrap_err()
            .to_string()
    };
    let prefix = "failed to create typed patch object (/t; example.org/v1, Kind=Test): ";
    for (spec, fault) in [
        (json!({"x": 1}), ".spec.x: field not declared in schema"),
        (
            json!({"a": "1"}),
            ".spec.a: expected numeric (int or float), got string",
        ),
        (
            json!({"b": 1}),
            ".spec.b: expected string, got &value.valueUnstructured{Value:1}",
        ),
        (
            json!({"rows": {"a": [1]}}),
            ".spec.rows: expected list, got &{map[a:[1]]}",
        ),
        (json!({"map": "a"}), ".spec.map: expected map, got &{a}"),
        (
            json!({"set": [1, 2, 1]}),
            ".spec.set: duplicate entries for key [=1]",
        ),
        (
            json!({"rows": [{"id": 1}, {"id": 1, "zone": "here"}]}),
            ".spec.rows: duplicate entries for key [id=1,zone=\"here\"]",
        ),
        (
            json!({"rows": [null]}),
            ".spec.rows: element 0: associative list with keys may not have a null element",
        ),
        (
            json!({"a": "1", "x": 1}),
            "errors:\n  .spec.a: expected numeric (int or float), got string\n  .spec.x: field not declared in schema",
        ),
    ] {
        assert_eq!(refused(spec), format!("{prefix}{fault}"));
    }
}

#[test]
fn fields_named_in_another_version_follow_the_object_there() {
    let schema = schema();
    let versions = [Version {
        api_version: "example.org/v2",
        schema: &schema,
    }];
    // In v2 the field `a` is called `b`, as text.
    let convert = |object: &Value, to: &str| {
        let mut object = object.clone();
        let Some(spec) = object["spec"].as_object_mut() else {
            return object;
        };
        let (from, into) = if to == V1 { ("b", "a") } else { ("a", "b") };
        if let Some(value) = spec.remove(from) {
            let text = value
                .as_str()
                .map(|text| text.parse::<i64>().unwrap().into());
            spec.insert(
                into.to_owned(),
                text.unwrap_or_else(|| value.to_string().into()),
            );
        }
        object["apiVersion"] = json!(to);
        object
    };
    let v1 = Endpoint {
        other_versions: &versions,
        convert: &convert,
        ..endpoint(&schema)
    };
    let older = [v1.version];
    let v2 = Endpoint {
        version: versions[0],
        other_versions: &older,
        ..v1
    };

    let mut config = object(json!({"b": "1", "list": [1]}));
    config["apiVersion"] = json!("example.org/v2");
    let live = v2.apply(None, &config, "two", false, NOW).unwrap();
    let live = convert(&live, V1);
    assert_eq!(live["spec"], json!({"a": 1, "list": [1]}));
    let refused = v1
        .apply(Some(&live), &object(json!({"a": 2})), "one", false, NOW)
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 1 conflict: conflict with \"two\": .spec.b"
    );
    // The same manager, in the other version and without the list.
    let live = v1
        .apply(Some(&live), &object(json!({"a": 2})), "two", false, NOW)
        .unwrap();
    assert_eq!(live["spec"], json!({"a": 2}));
    assert_eq!(owners(&live), ["two Apply: .spec.a"]);
    // Whose version is gone, loses.
    let alone = endpoint(&schema);
    let mut live = convert(&v2.apply(None, &config, "two", false, NOW).unwrap(), V1);
    let before = live.clone();
    live["spec"]["a"] = json!(3);
    alone.track_update(Some(&before), &mut live, "one", NOW);
    assert_eq!(owners(&live), ["one Update: .spec.a"]);
}

#[test]
fn a_field_that_became_one_value_is_owned_as_a_whole() {
    let schema = schema();
    let mut live = object(json!({"list": [1], "a": 1}));
    live["metadata"]["managedFields"] = json!([{
        "apiVersion": V1, "fieldsType": "FieldsV1", "manager": "one", "operation": "Apply",
        "fieldsV1": {"f:spec": {"f:list": {"v:1": {}}}},
    }]);
    let live = updated(
        &schema,
        Some(&live),
        json!({"list": [1], "a": 2}),
        "two",
        NOW,
    );
    assert_eq!(
        owners(&live),
        ["one Apply: .spec.list", "two Update: .spec.a"]
    );
}

#[test]
fn the_eleventh_updater_is_merged_with_the_oldest() {
    let schema = schema();
    let mut live = updated(&schema, None, json!({"map": {}}), "m00", NOW);
    let mut map = json!({});
    for index in 1..14 {
        map[format!("k{index}")] = json!("v");
        let now = UnixTime::from_secs(1_000 + index);
        live = updated(
            &schema,
            Some(&live),
            json!({ "map": map }),
            &format!("m{index:02}"),
            now,
        );
    }
    let managed = ManagedFields::decode(&live["metadata"]["managedFields"]).unwrap();
    assert_eq!(managed.entries().len(), MAX_UPDATE_MANAGERS);
    assert!(
        owners(&live)[0].starts_with("ancient-changes Update: .spec .spec.map"),
        "{:?}",
        owners(&live)
    );
    let first = &live["metadata"]["managedFields"][0];
    assert_eq!(
        (&first["manager"], &first["time"]),
        (&json!("ancient-changes"), &json!("1970-01-01T00:16:44Z"))
    );
}

#[test]
fn times_are_kept_when_nothing_else_changes() {
    let schema = schema();
    let live = updated(&schema, None, json!({"a": 1}), "one", NOW);
    let mut same = live.clone();
    same["metadata"]["managedFields"][0]["time"] = json!("2030-01-01T00:00:00Z");
    let mut other = same.clone();
    other["spec"]["a"] = json!(2);
    let changed = other.clone();
    keep_times(&live, &mut same);
    keep_times(&live, &mut other);
    assert_eq!((same, other), (live, changed));
}

#[test]
fn a_time_that_moves_its_owner_is_a_change() {
    let owner = |manager: &str, time: Option<&str>| json!({"manager": manager, "time": time});
    let object = |owners: [Value; 2]| json!({"metadata": {"managedFields": owners}});
    let later = Some("2030-01-01T00:00:00Z");
    let live = object([owner("two", None), owner("one", later)]);
    let moved = object([owner("one", later), owner("two", later)]);
    let mut after = moved.clone();
    keep_times(&live, &mut after);
    assert_eq!(after, moved);
}

#[test]
fn canonical_order_is_that_of_values_and_not_of_texts() {
    let set =
        set(&json!({"f:p": {"k:{\"port\":10}": {}, "k:{\"port\":9}": {}, ".": {}}, "f:a": {}}));
    assert_eq!(
        serde_json::to_string(&set).unwrap(),
        r#"{"f:a":{},"f:p":{".":{},"k:{\"port\":9}":{},"k:{\"port\":10}":{}}}"#
    );
}
