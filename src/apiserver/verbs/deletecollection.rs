//! DELETE of a collection: each object that matches now, as if deleted by name.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use http::{Response, StatusCode};

use super::{delete::DeleteOptions, list::matches, request::VerbRequest};
use crate::{
    apiserver::{
        Body, Deleted, NotUpdated, Resource, Status,
        body::json_response,
        form::{Form, ListEnd},
        negotiate::{Offer, Shape},
        options::ListOptions,
    },
    meta::UnixTime,
    store::{Key, Stored, Value},
};

/// Deletions under way at once: each may wait for a node.
const AT_ONCE: usize = 64;
/// Objects taken from the store under one lock.
const PIECE: usize = 256;

type Object<R> = Arc<Stored<<R as Resource>::Object>>;

pub(super) async fn delete_collection<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let negotiated = request.negotiate(Offer::Plain)?;
    request.checked_namespace(resource.definition())?;
    let selected = ListOptions::parse(&request.query, resource.definition().selectable_fields)?;
    let options = DeleteOptions::parse(resource.definition(), request)?;
    let found = select(resource.as_ref(), request, &selected)?;
    let deletions = found
        .into_iter()
        .map(|object| delete_one(resource.as_ref(), request, &options, object));
    let deleted: Vec<Option<Object<R>>> = futures::stream::iter(deletions)
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let form = Form {
        shape: Shape::Object,
        version: request.version,
    };
    let mut out = Vec::new();
    form.list_head(resource.as_ref(), &mut out);
    for (index, object) in deleted.iter().flatten().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        form.list_item(
            resource.as_ref(),
            &object.value,
            object.version,
            UnixTime::now(),
            &mut out,
        );
    }
    form.list_tail(
        resource.as_ref(),
        resource.store().head(),
        &ListEnd::default(),
        &mut out,
    );
    Ok(json_response(StatusCode::OK, negotiated.media_type, out))
}

/// The objects to delete: those that match, at most `limit` of them.
fn select<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    options: &ListOptions,
) -> Result<Vec<Object<R>>, Status> {
    let scope = request.scope(&options.selection.fields);
    let limit = options.limit.unwrap_or(usize::MAX);
    let store = resource.store();
    let at = store.head();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store
            .page(&scope, after.as_ref(), at, PIECE)
            .map_err(|expired| Status::expired(expired.to_string()))?;
        after = page
            .items
            .last()
            .map(|object| Key::new(object.value.namespace(), object.value.name()));
        let matching = page
            .items
            .into_iter()
            .filter(|object| matches(resource, &options.selection, &object.value));
        found.extend(matching.take(limit - found.len()));
        if !page.more || found.len() >= limit {
            return Ok(found);
        }
    }
}

/// Deletes one of them; `None` when it is gone already or is not what the options mean any more.
async fn delete_one<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    options: &DeleteOptions,
    object: Object<R>,
) -> Result<Option<Object<R>>, Status> {
    if options.dry_run || options.preconditions.check(resource, &object).is_err() {
        return Ok(options.dry_run.then_some(object));
    }
    match resource
        .delete(&request.context, object, options.deletion())
        .await
    {
        Ok(Deleted::Gone(object) | Deleted::Pending(object)) => Ok(Some(object)),
        Err(NotUpdated::Overtaken) => Ok(None),
        Err(NotUpdated::Refused(status)) if status.code() == StatusCode::NOT_FOUND => Ok(None),
        Err(NotUpdated::Refused(status)) => Err(status),
    }
}
