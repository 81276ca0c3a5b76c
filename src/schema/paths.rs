//! Paths and operations as the two versions of OpenAPI write them.

use serde_json::{Map, Value, json};

use super::{
    definitions::Form,
    operations::{Operation, PathItem},
    parameters::{PRETTY, Parameter},
};

/// Types of an answer's body.
const PRODUCES: [&str; 2] = ["application/json", "application/yaml"];
/// The type of a stream of events.
const STREAM: &str = "application/json;stream=watch";

pub(super) fn path_item_v3(item: &PathItem) -> Value {
    let variable = |(name, description): &(&str, String)| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": description,
            "schema": { "type": "string", "uniqueItems": true },
        })
    };
    path_item(item, query_v3, variable, operation_v3)
}

pub(super) fn path_item_v2(item: &PathItem) -> Value {
    let variable = |(name, description): &(&str, String)| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": description,
            "type": "string",
            "uniqueItems": true,
        })
    };
    path_item(item, query_v2, variable, operation_v2)
}

fn path_item(
    item: &PathItem,
    query: fn(&Parameter) -> Value,
    variable: impl Fn(&(&'static str, String)) -> Value,
    operation: fn(&Operation) -> Value,
) -> Value {
    let parameters: Vec<Value> = item
        .variables
        .iter()
        .map(variable)
        .chain([query(&PRETTY)])
        .collect();
    let operations = item.operations.iter();
    let mut written: Map<String, Value> = operations
        .map(|each| (each.method.to_owned(), operation(each)))
        .collect();
    written.insert("parameters".to_owned(), parameters.into());
    Value::Object(written)
}

fn operation_v3(operation: &Operation) -> Value {
    let parameters: Vec<Value> = operation.query.iter().map(query_v3).collect();
    let answers = operation.responses.iter().map(|(code, meaning, name)| {
        let content = contents(&produced(operation), name);
        (
            code.to_string(),
            json!({ "description": meaning, "content": content }),
        )
    });
    let mut written = common(operation, parameters, answers.collect());
    if let Some(body) = &operation.body {
        let mut request = json!({ "content": contents(&body.media_types, &body.definition) });
        if body.required {
            request["required"] = json!(true);
        }
        written["requestBody"] = request;
    }
    written
}

fn operation_v2(operation: &Operation) -> Value {
    let mut parameters: Vec<Value> = operation.query.iter().map(query_v2).collect();
    let mut consumed = vec!["*/*"];
    if let Some(body) = &operation.body {
        consumed.clone_from(&body.media_types);
        let mut parameter =
            json!({ "name": "body", "in": "body", "schema": Form::V2.reference(&body.definition) });
        if body.required {
            parameter["required"] = json!(true);
        }
        parameters.insert(0, parameter);
    }
    let answers = operation.responses.iter().map(|(code, meaning, name)| {
        (
            code.to_string(),
            json!({ "description": meaning, "schema": Form::V2.reference(name) }),
        )
    });
    let mut written = common(operation, parameters, answers.collect());
    written["consumes"] = json!(consumed);
    written["produces"] = json!(produced(operation));
    written["schemes"] = json!(["https"]);
    written
}

/// What both versions say in the same words.
fn common(
    operation: &Operation,
    parameters: Vec<Value>,
    mut responses: Map<String, Value>,
) -> Value {
    responses.insert("401".to_owned(), json!({ "description": "Unauthorized" }));
    json!({
        "operationId": operation.id,
        "description": operation.description,
        "tags": [operation.tag],
        "parameters": parameters,
        "responses": responses,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": operation.group_version_kind,
    })
}

fn query_v3(parameter: &Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "schema": { "type": parameter.kind, "uniqueItems": true },
    })
}

fn query_v2(parameter: &Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "type": parameter.kind,
        "uniqueItems": true,
    })
}

fn produced(operation: &Operation) -> Vec<&'static str> {
    let mut types = PRODUCES.to_vec();
    types.extend(operation.streams.then_some(STREAM));
    types
}

fn contents(media_types: &[&str], definition: &str) -> Map<String, Value> {
    let schema = json!({ "schema": Form::V3.reference(definition) });
    media_types
        .iter()
        .map(|media_type| ((*media_type).to_owned(), schema.clone()))
        .collect()
}
