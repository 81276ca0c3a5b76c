//! DELETE of one object.

use std::{collections::BTreeMap, sync::Arc};

use http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{preconditions::Preconditions, request::VerbRequest};
use crate::{
    apiserver::{
        Body, Definition, Deleted, Deletion, Dependents, NotUpdated, Resource, Status,
        body::{json_response, value_response},
        negotiate::Offer,
        options::dry_run,
        query::Query,
        resource::object_json,
    },
    store::{Stored, Value as _},
};

/// What a deletion is asked to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeleteOptions {
    pub(super) preconditions: Preconditions,
    pub(super) dry_run: bool,
    dependents: Dependents,
    /// Whether the client said `orphanDependents=false`, the older form of a deletion with all dependents.
    cascades: bool,
}

/// `metav1.DeleteOptions`. Every field is typed: an option that cannot be read must refuse the deletion and not widen it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OptionsBody {
    api_version: Option<String>,
    kind: Option<String>,
    /// Read for its type alone: what a sandbox does with its last seconds is its node's to say.
    #[serde(rename = "gracePeriodSeconds")]
    _grace_period_seconds: Option<i64>,
    // A map and not a struct, which serde would read from an array too.
    preconditions: Option<BTreeMap<String, Option<String>>>,
    orphan_dependents: Option<bool>,
    propagation_policy: Option<String>,
    dry_run: Option<Vec<String>>,
}

pub(super) async fn delete<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let definition = resource.definition();
    let negotiated = request.negotiate(Offer::Plain)?;
    let options = DeleteOptions::parse(definition, request)?;
    let key = request.key();
    let deleted = loop {
        let found = resource.store().get(&key.namespace, &key.name);
        let object = found.ok_or_else(|| Status::not_found(definition, &key.name))?;
        options.preconditions.check(resource.as_ref(), &object)?;
        if options.dry_run {
            let success = success(resource.as_ref(), &object);
            return Ok(value_response(
                StatusCode::OK,
                negotiated.media_type,
                &success,
            ));
        }
        let delete = resource.delete(&request.context, object, options.deletion());
        match delete.await {
            Ok(deleted) => break deleted,
            // It has not the version any more that the client named, nor will it ever again: the next look says so.
            Err(NotUpdated::Overtaken) => {}
            Err(NotUpdated::Refused(status)) => return Err(status),
        }
    };
    match deleted {
        Deleted::Gone(last) => Ok(value_response(
            StatusCode::OK,
            negotiated.media_type,
            &success(resource.as_ref(), &last),
        )),
        Deleted::Pending(object) => {
            // 202 would be right for all of them, but only clients that speak of dependents in the older form expect it.
            let code = match options.cascades {
                true => StatusCode::ACCEPTED,
                false => StatusCode::OK,
            };
            let json = object_json(resource.as_ref(), &object, request.version);
            Ok(json_response(code, negotiated.media_type, json))
        }
    }
}

/// The Status of a deletion that is done; clients wait on the uid in it.
fn success<R: Resource>(resource: &R, object: &Stored<R::Object>) -> Value {
    let definition = resource.definition();
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": object.value.name(),
            "group": definition.group,
            "kind": definition.plural,
            "uid": resource.uid(&object.value),
        },
    })
}

impl DeleteOptions {
    /// Reads the options from the body, or from the query when there is none. A dry run is one wherever it is asked for.
    ///
    /// # Errors
    /// 400 for a body that is no DeleteOptions, 422 for values that are none.
    pub(super) fn parse(definition: &Definition, request: &VerbRequest) -> Result<Self, Status> {
        let body = match request.body.is_empty() {
            true => OptionsBody::of_query(&request.query)?,
            false => OptionsBody::decode(definition, request)?,
        };
        let in_body = body.dry_run.iter().flatten().map(String::as_str);
        let dry_run = dry_run(in_body.chain(request.query.all("dryRun")))
            .map_err(|message| invalid("dryRun", message))?;
        let policy = body.propagation_policy.unwrap_or_default();
        Ok(Self {
            preconditions: Preconditions::of(body.preconditions.unwrap_or_default()),
            dry_run,
            dependents: dependents(&policy, body.orphan_dependents)?,
            cascades: body.orphan_dependents == Some(false),
        })
    }

    pub(super) fn deletion(&self) -> Deletion {
        Deletion {
            dependents: self.dependents,
            exact: self.preconditions.resource_version.is_some(),
        }
    }
}

impl OptionsBody {
    fn of_query(query: &Query) -> Result<Self, Status> {
        let orphan = query.get("orphanDependents");
        Ok(Self {
            _grace_period_seconds: query.number("gracePeriodSeconds")?,
            propagation_policy: query.get("propagationPolicy").map(str::to_owned),
            orphan_dependents: orphan.map(|_| query.flag("orphanDependents")),
            ..Self::default()
        })
    }

    fn decode(definition: &Definition, request: &VerbRequest) -> Result<Self, Status> {
        let options = request.decode()?.value;
        if !options.is_object() {
            return Err(Status::bad_request(
                "the body of a delete must be DeleteOptions",
            ));
        }
        let options: Self = serde_json::from_value(options).map_err(|error| {
            Status::bad_request(format!(
                "the body of a delete must be DeleteOptions: {error}"
            ))
        })?;
        options.check_type(definition)?;
        Ok(options)
    }

    fn check_type(&self, definition: &Definition) -> Result<(), Status> {
        let api_version = self.api_version.as_deref().unwrap_or_default();
        let own = (0..definition.versions.len())
            .any(|version| definition.api_version(version) == api_version);
        if !own && !matches!(api_version, "" | "v1" | "meta.k8s.io/v1") {
            let api_version: String = api_version.chars().take(128).collect();
            return Err(Status::bad_request(format!(
                "no kind \"DeleteOptions\" is registered for version {api_version:?}"
            )));
        }
        match self.kind.as_deref() {
            None | Some("" | "DeleteOptions") => Ok(()),
            Some(kind) => {
                let kind: String = kind.chars().take(128).collect();
                Err(Status::bad_request(format!(
                    "the body of a delete must be DeleteOptions, not {kind:?}"
                )))
            }
        }
    }
}

/// What becomes of dependents, from the policy or its older form.
fn dependents(policy: &str, orphan: Option<bool>) -> Result<Dependents, Status> {
    match (policy, orphan) {
        ("", Some(true)) => Ok(Dependents::Orphan),
        ("", None) => Ok(Dependents::Unsaid),
        ("Background", None) | ("", Some(false)) => Ok(Dependents::Background),
        ("Foreground", None) => Ok(Dependents::Foreground),
        ("Orphan", None) => Ok(Dependents::Orphan),
        (_, Some(_)) => Err(invalid(
            "propagationPolicy",
            format!(
                "Invalid value: {policy:?}: orphanDependents and deletionPropagation cannot be both set"
            ),
        )),
        (other, None) => {
            let other: String = other.chars().take(64).collect();
            let message = format!(
                "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            );
            Err(invalid("propagationPolicy", message))
        }
    }
}

fn invalid(field: &str, message: String) -> Status {
    Status::invalid_option("DeleteOptions", field, message)
}
