//! A subresource: a question about an object, by GET, or an action on it, by POST.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{
    action_owner, create::refuse, faults::judge, preconditions::Preconditions, request::VerbRequest,
};
use crate::{
    apiserver::{
        Body, Call, Definition, Invoke, Invoked, Resource, Status, StatusCause,
        body::{json_response, value_response},
        negotiate::Offer,
        options::{FieldValidation, WriteOptions},
        resource::object_json,
    },
    schema::{Decoded, Schema},
};

pub(super) async fn invoke<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
    subresource: usize,
) -> Result<Response<Body>, Status> {
    let definition = resource.definition();
    let negotiated = request.negotiate(Offer::Plain)?;
    let key = request.key();
    let (body, dry_run) = match &definition.subresources[subresource].call {
        Call::Get => (json!({}), false),
        Call::Create { options, schema } => {
            let write = WriteOptions::parse(&request.query, "CreateOptions")?;
            let validation = write.field_validation;
            let body = decode(definition, request, options.kind, schema, validation)?;
            (body, write.dry_run)
        }
    };
    let found = resource.store().get(&key.namespace, &key.name);
    let object = found.ok_or_else(|| Status::not_found(definition, &key.name))?;
    preconditions(&body).check(resource.as_ref(), &object)?;
    if definition.subresources[subresource].creates {
        let admitted = request.namespaces.check(&key.namespace).await;
        admitted.map_err(|denied| refuse(definition, &key.name, denied))?;
    }
    let invoke = Invoke {
        subresource,
        object: object.clone(),
        options: body,
        dry_run,
        version: request.version,
    };
    match resource.invoke(&request.context, invoke).await? {
        Invoked::Object(changed) => {
            let resource = resource.as_ref();
            let changed = action_owner::note(resource, request, &object, changed).await?;
            let json = object_json(resource, &changed, request.version);
            Ok(json_response(StatusCode::OK, negotiated.media_type, json))
        }
        Invoked::Json(code, value) => Ok(value_response(code, negotiated.media_type, &value)),
    }
}

/// Which object is meant, of options that are checked.
fn preconditions(options: &Value) -> Preconditions {
    let fields = options["preconditions"].as_object().into_iter().flatten();
    let fields = fields.map(|(field, value)| (field.clone(), value.as_str().map(str::to_owned)));
    Preconditions::of(fields.collect())
}

/// The options in the body, checked; an empty body means none.
fn decode(
    definition: &Definition,
    request: &VerbRequest,
    kind: &'static str,
    schema: &Schema,
    validation: FieldValidation,
) -> Result<Value, Status> {
    let Decoded {
        value: mut options,
        duplicates,
    } = match request.body.is_empty() {
        true => Decoded {
            value: json!({}),
            duplicates: Vec::new(),
        },
        false => request.decode()?,
    };
    if !options.is_object() {
        return Err(Status::bad_request(format!("the body must be a {kind}")));
    }
    let expected = definition.api_version(request.version);
    for (field, expected) in [("apiVersion", expected.as_str()), ("kind", kind)] {
        if let Some(found) = options[field]
            .as_str()
            .filter(|found| !found.is_empty() && *found != expected)
        {
            let found: String = found.chars().take(128).collect();
            return Err(Status::bad_request(format!(
                "the {field} in the data ({found:?}) does not match the expected {field} ({expected:?})"
            )));
        }
    }
    let report = schema.admit(&mut options);
    judge(request, kind, validation, &duplicates, &report.unknown)?;
    if !report.causes.is_empty() {
        let causes = report.causes.into_iter().map(StatusCause::from).collect();
        return Err(Status::invalid(
            definition.group,
            kind,
            &request.target.name,
            causes,
        ));
    }
    Ok(options)
}
