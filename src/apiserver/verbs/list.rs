//! LIST: streamed from the store in bounded pieces, all of one version.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::request::{VerbRequest, reach};
use crate::{
    apiserver::{
        Body, Resource, Status,
        body::{Interrupted, STREAMED_FROM, json_response, response},
        form::{Form, ListEnd},
        negotiate::{MediaType, Offer},
        options::{ListOptions, Selection},
        page::{ContinueToken, Start},
    },
    meta::{ResourceVersion, UnixTime},
    store::{Expired, Key, Scope, Stored, Value},
};

/// Objects taken from the store under one lock.
const PIECE: usize = 256;
/// Bytes after which a chunk is sent: large enough that TLS and HTTP/2 frames are full, small enough that many lists at once
/// stay flat. A list of one chunk goes out whole.
const CHUNK: usize = STREAMED_FROM;

/// About the length of an item, for the first guess of a buffer's.
const ITEM: usize = 1 << 10;

pub(super) async fn list<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let negotiated = request.negotiate(Offer::List)?;
    let options = ListOptions::parse(&request.query, resource.definition().selectable_fields)?;
    let scope = request.scope(&options.selection.fields);
    let Beginning { at, after, behind } = settle(resource.as_ref(), &options.start, &scope).await?;
    let n_objects = behind.unwrap_or_else(|| resource.store().count(&scope));
    let mut lister = Lister {
        resource: resource.clone(),
        form: Form {
            shape: negotiated.shape,
            version: request.version,
        },
        scope,
        selection: options.selection,
        at,
        resume: after.clone(),
        after,
        behind,
        n_shown: 0,
        left: options.limit,
        expected: options.limit.unwrap_or(usize::MAX).min(n_objects),
        now: UnixTime::now(),
        stage: Stage::Head,
    };
    // Most lists are one chunk: they go out whole, and an error on the way is still an error and not a broken stream.
    let mut first = lister
        .chunk()
        .await
        .map_err(|expired| lister.expired(expired))?;
    if lister.stage == Stage::Done {
        return Ok(json_response(StatusCode::OK, negotiated.media_type, first));
    }
    if negotiated.media_type == MediaType::Yaml {
        while lister.stage != Stage::Done {
            first.extend(
                lister
                    .chunk()
                    .await
                    .map_err(|expired| lister.expired(expired))?,
            );
        }
        return Ok(json_response(StatusCode::OK, negotiated.media_type, first));
    }
    let rest = futures::stream::unfold(Some(lister), |lister| async move {
        let mut lister = lister?;
        if lister.stage == Stage::Done {
            return None;
        }
        match lister.chunk().await {
            Ok(bytes) => Some((Ok(Bytes::from(bytes)), Some(lister))),
            Err(expired) => Some((Err(Interrupted::new(expired.to_string())), None)),
        }
    });
    let chunks = futures::stream::once(async move { Ok(Bytes::from(first)) });
    let body = Body::stream(futures::StreamExt::chain(chunks, rest));
    Ok(response(StatusCode::OK, MediaType::Json.as_str(), body))
}

/// Where a list begins: found by [`settle`].
struct Beginning {
    /// The version to read at.
    at: ResourceVersion,
    /// The object to go on behind.
    after: Option<Key>,
    /// Objects of the scope from there on, if that is known without counting.
    behind: Option<usize>,
}

/// Where the list begins that was asked for, once the store has come so far.
async fn settle<R: Resource>(
    resource: &R,
    start: &Start,
    scope: &Scope,
) -> Result<Beginning, Status> {
    let store = resource.store();
    let at_head = || {
        let (at, n_objects) = store.head_with_count(scope);
        Beginning {
            at,
            after: None,
            behind: Some(n_objects),
        }
    };
    match start {
        Start::Latest => Ok(at_head()),
        Start::NotOlderThan(version) => {
            reach(store, *version).await?;
            Ok(at_head())
        }
        Start::Exact(version) => {
            reach(store, *version).await?;
            let newest = at_head();
            Ok(Beginning {
                at: *version,
                after: None,
                behind: newest.behind.filter(|_| newest.at == *version),
            })
        }
        Start::Continue(token) => {
            let key = token.key(&list_name(resource, scope))?;
            let version = token.version().unwrap_or_else(|| store.head());
            if version > store.head() {
                return Err(Status::bad_request(
                    "invalid continue token: continue key is not valid: its version was never handed out",
                ));
            }
            Ok(Beginning {
                at: version,
                after: Some(key),
                behind: token.remaining(),
            })
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing written.
    Head,
    /// Some items written.
    Items,
    /// The end written.
    Done,
}

/// A list on its way out.
struct Lister<R: Resource> {
    resource: Arc<R>,
    form: Form,
    scope: Scope,
    selection: Selection,
    at: ResourceVersion,
    /// The last object looked at.
    after: Option<Key>,
    /// Behind which object the client goes on: the last it was shown, here or on the page before. Those looked at since do not
    /// count: if the version is forgotten, the list goes on with the newest, which may have others in between.
    resume: Option<Key>,
    /// Objects behind where it began, if that is known.
    behind: Option<usize>,
    /// Items written.
    n_shown: usize,
    /// Items that may still be shown.
    left: Option<usize>,
    /// Items that there will be at most, as far as can be told.
    expected: usize,
    now: UnixTime,
    stage: Stage,
}

impl<R: Resource> Lister<R> {
    /// The next chunk.
    async fn chunk(&mut self) -> Result<Vec<u8>, Expired> {
        let room = self.expected.saturating_mul(ITEM).min(CHUNK) + (4 << 10);
        let mut out = Vec::with_capacity(room);
        if self.stage == Stage::Head {
            self.form.list_head(self.resource.as_ref(), &mut out);
            self.stage = Stage::Items;
        }
        while out.len() < CHUNK {
            let want = match self.left {
                // One more than may be shown tells whether there is more.
                Some(left) if self.selection.is_everything() => left.saturating_add(1).min(PIECE),
                _ => PIECE,
            };
            let page =
                self.resource
                    .store()
                    .page(&self.scope, self.after.as_ref(), self.at, want)?;
            let mut shown_all = self.left == Some(0);
            for object in &page.items {
                if !matches(self.resource.as_ref(), &self.selection, &object.value) {
                    continue;
                }
                // One more match than may be shown proves that there is more.
                if shown_all {
                    self.finish(true, &mut out);
                    return Ok(out);
                }
                self.write(object, &mut out);
                shown_all = self.left == Some(0);
            }
            let Some(last) = page.items.last().filter(|_| page.more) else {
                self.finish(false, &mut out);
                return Ok(out);
            };
            self.after = Some(key_of(last));
            // A selector may turn down a million objects in a row, which others should not have to wait for.
            tokio::task::yield_now().await;
        }
        Ok(out)
    }

    fn write(&mut self, object: &Stored<R::Object>, out: &mut Vec<u8>) {
        if self.n_shown > 0 {
            out.push(b',');
        }
        self.n_shown += 1;
        self.form.list_item(
            self.resource.as_ref(),
            &object.value,
            object.version,
            self.now,
            out,
        );
        self.left = self.left.map(|left| left.saturating_sub(1));
        if self.left == Some(0) {
            self.resume = Some(key_of(object));
        }
    }

    fn finish(&mut self, more: bool, out: &mut Vec<u8>) {
        let mut end = ListEnd::default();
        if more && let Some(last) = &self.resume {
            let is_everything = self.selection.is_everything();
            end.remaining = is_everything.then(|| self.remaining(last)).flatten();
            let token = self
                .token(Some(self.at), last)
                .with_remaining(end.remaining);
            end.continue_token = Some(token.to_string());
        }
        self.form
            .list_tail(self.resource.as_ref(), self.at, &end, out);
        self.stage = Stage::Done;
    }

    /// Number of objects behind `last`: those that it began with less those that it showed, else counted, as exactness is promised.
    /// `None` when the log has moved on meanwhile.
    fn remaining(&self, last: &Key) -> Option<usize> {
        if let Some(behind) = self.behind {
            return Some(behind.saturating_sub(self.n_shown));
        }
        self.resource
            .store()
            .count_after(&self.scope, last, self.at)
            .ok()
    }

    fn token(&self, at: Option<ResourceVersion>, last: &Key) -> ContinueToken {
        let list = list_name(self.resource.as_ref(), &self.scope);
        ContinueToken::new(list, at, last)
    }

    fn expired(&self, expired: Expired) -> Status {
        let status = Status::expired(format!(
            "The provided continue parameter or resource version is too old to display a consistent list result ({expired})"
        ));
        match &self.resume {
            Some(last) => status.continue_with(self.token(None, last).to_string()),
            None => status,
        }
    }
}

/// By what a continue token knows its list again.
fn list_name<R: Resource>(resource: &R, scope: &Scope) -> String {
    let namespace = scope.namespace().unwrap_or_default();
    format!("{}/{namespace}", resource.definition().qualified())
}

fn key_of<V: Value>(object: &Stored<V>) -> Key {
    Key::new(object.value.namespace(), object.value.name())
}

/// Whether the selectors take the object.
pub(super) fn matches<R: Resource>(
    resource: &R,
    selection: &Selection,
    object: &R::Object,
) -> bool {
    let field = |path: &str| match path {
        "metadata.name" => Some(object.name().into()),
        "metadata.namespace" => Some(object.namespace().into()),
        path => resource.field(object, path),
    };
    (selection.labels.is_empty() || selection.labels.matches(|key| resource.label(object, key)))
        && (selection.fields.is_empty() || selection.fields.matches(field))
}
