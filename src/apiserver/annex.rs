//! What is served beside the API, below a path of its own: with the server's authentication, authorization and log.
//!
//! The places of requests in flight are the API's alone: a request to an annex may take minutes, and a hundred of them must not
//! keep a hundred others from a get. An annex has bounds of its own, in number and time.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, request::Parts};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

use super::{
    ApiServer, Body, Interrupted, Status,
    audit::Progress,
    server::{SHUTDOWN_RETRY_SECONDS, let_go, shows_nothing},
};
use crate::{auth::ResourceAttributes, schema::Verb, serving::Connection};

/// The body of a request, as it comes.
pub type RequestBody = UnsyncBoxBody<Bytes, Interrupted>;

/// What is served below a path of its own.
pub trait Annex: Send + Sync + 'static {
    /// The path below which everything is its own: with a slash before it and none behind.
    fn path(&self) -> &'static str;

    /// What a request is about, told by its head alone; `None` when everybody may have the answer, whoever they are. Nobody else
    /// is let in as system:anonymous.
    ///
    /// # Errors
    /// When it is about nothing. The caller is told without being known: nothing may be looked up for it.
    fn matter(&self, head: &Parts) -> Result<Option<Matter>, Status>;

    /// Answers a request whose caller may do what it is about.
    fn serve(&self, request: Request<RequestBody>)
    -> BoxFuture<'_, Result<Response<Body>, Status>>;
}

/// What a request to an annex is about: the right to `create` this is asked for, and the log names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matter {
    /// What is done, in a word.
    pub action: &'static str,
    /// API group.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Plural of the resource.
    pub resource: &'static str,
    /// Its subresource.
    pub subresource: &'static str,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl Matter {
    /// What a caller needs the right to do, whatever is done: who may do one thing may do all.
    pub(super) const VERB: Verb = Verb::Create;

    pub(super) fn attributes(&self) -> ResourceAttributes<'_> {
        ResourceAttributes {
            verb: Self::VERB.as_str(),
            group: self.group,
            version: self.version,
            resource: self.resource,
            subresource: self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            label_selector: None,
            field_selector: None,
        }
    }
}

/// The annex that a path is below of. A path is compared as it was sent: one that is written otherwise leads nowhere.
pub(super) fn find<'a>(annexes: &'a [Box<dyn Annex>], path: &str) -> Option<&'a dyn Annex> {
    let annexes = annexes.iter().map(AsRef::as_ref);
    annexes.into_iter().find(|annex: &&dyn Annex| {
        let rest = path.strip_prefix(annex.path());
        rest.is_some_and(|rest| rest.starts_with('/'))
    })
}

impl ApiServer {
    /// A request to an annex.
    pub(super) async fn beside_api<B>(
        &self,
        annex: &dyn Annex,
        connection: &Connection,
        request: Request<B>,
        progress: &mut Progress,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let (mut head, body) = request.into_parts();
        match annex.matter(&head)? {
            Some(matter) => {
                let version = head.version;
                let identity = self
                    .identify(&mut head.headers, version, connection, progress)
                    .await?;
                if identity.user.is_anonymous() {
                    return Err(Status::unauthorized());
                }
                progress.about_annex(&matter);
                let access = self.access(identity);
                let privileged = access.user().is_in("system:masters");
                // Held while others are asked, as for any request, and not while the annex works.
                let place = self.limits.enter(Verb::Get, privileged)?;
                access.check_annex(&matter).await?;
                drop(place);
                progress.authorized();
            }
            None if shows_nothing(&head.headers, connection) => let_go(head.version, connection),
            None => {}
        }
        if self.parts.shutdown.is_cancelled() {
            let ending = Status::unavailable("the server is ending");
            return Err(ending.retry_after(SHUTDOWN_RETRY_SECONDS));
        }
        if !self.parts.readiness.serves() {
            let text = "the server is not ready: it does not know all nodes yet";
            return Err(Status::unavailable(text).retry_after(1));
        }
        let body = body.map_err(|error| Interrupted::new(error.to_string()));
        let body = RequestBody::new(body);
        annex.serve(Request::from_parts(head, body)).await
    }
}
