//! A kind of object as the cluster lists and watches it.

use std::{
    collections::{HashMap, VecDeque},
    fmt::Debug,
    time::Duration,
};

use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use kube::{
    Api, Error as KubeError, Resource, ResourceExt,
    runtime::watcher::{self, Config, Event, watcher},
};
use rand::Rng;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Update;
use crate::api::NodeName;

/// How long one watch lasts, in seconds; kube-apiserver ends it and it is resumed. A connection that died unnoticed is found
/// by then.
const WATCH_SECONDS: u32 = 120;
/// After so long without a change there is a new list: either nothing changes, so that it costs little, or a watch was asked
/// for and kube-apiserver never answered.
const QUIET: Duration = Duration::from_secs(300);
/// A list may be silent for so long.
const SILENCE: Duration = Duration::from_secs(30);
/// Objects in one page of a list, for a cluster that cannot stream one: at 1 MiB an inventory this is what is in memory.
const PAGE: u32 = 64;
/// Pauses after failures, from and to.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(30)];
/// Characters of a reason that are kept.
const MAX_REASON: usize = 256;
/// How long kube-apiserver may take to say whether an object is there.
const GET_WITHIN: Duration = Duration::from_secs(5);
/// When it is asked again, if it did not.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// A kind of object that can be watched.
pub(super) trait Watched:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

/// The objects' updates. Never ends: what fails is told, and tried again after a pause.
pub(super) fn updates<K: Watched>(api: Api<K>) -> BoxStream<'static, Update<K>> {
    let watch = Watch::new(api);
    stream::unfold(watch, async |mut watch| {
        let update = watch.next().await;
        Some((update, watch))
    })
    .boxed()
}

/// Whether an object is there; `None`: kube-apiserver did not say.
type IsThere = Option<bool>;

struct Watch<K> {
    api: Api<K>,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    /// Whether the list is asked for as a stream of its objects, one in memory at a time.
    streams_lists: bool,
    state: State,
    /// The objects that were told and not deleted, each with the number of the last list that named it.
    known: HashMap<NodeName, u64>,
    /// Those of which kube-apiserver did not say whether they are there, each with the time when it is asked again.
    unconfirmed: VecDeque<(Instant, NodeName)>,
    /// The question for one of them, beside which changes are taken.
    asking: Option<BoxFuture<'static, (NodeName, IsThere)>>,
    /// When there is a new list, unless something changes.
    quiet_until: Instant,
    n_lists: u64,
    n_failures: u32,
    pause: Option<Duration>,
}

enum State {
    /// Nothing arrived yet.
    New,
    /// Objects of a list arrive.
    Listing,
    /// The list is over. These are known and were not in it, which is to be confirmed one by one: a list may come from a
    /// cache that lags behind what was told before.
    Confirming(Vec<NodeName>),
    /// Changes arrive.
    Watching,
}

impl<K: Watched> Watch<K> {
    fn new(api: Api<K>) -> Self {
        Self {
            events: events(&api, true),
            api,
            streams_lists: true,
            state: State::New,
            known: HashMap::new(),
            unconfirmed: VecDeque::new(),
            asking: None,
            quiet_until: Instant::now() + QUIET,
            n_lists: 0,
            n_failures: 0,
            pause: None,
        }
    }

    async fn next(&mut self) -> Update<K> {
        loop {
            if let Some(pause) = self.pause.take() {
                sleep(pause).await;
            }
            let update = match &mut self.state {
                State::Confirming(missing) => match missing.pop() {
                    Some(node) => {
                        let (node, is_there) = ask(self.api.clone(), node).await;
                        self.confirmed(node, is_there)
                    }
                    None => {
                        self.state = State::Watching;
                        self.quiet_until = Instant::now() + QUIET;
                        Some(Update::ListEnds)
                    }
                },
                State::Watching => self.watch().await,
                _ => self.receive(Instant::now() + SILENCE).await,
            };
            if let Some(update) = update {
                return update;
            }
        }
    }

    /// Takes in whether a node is there.
    fn confirmed(&mut self, node: NodeName, is_there: IsThere) -> Option<Update<K>> {
        match is_there {
            Some(true) => None,
            Some(false) => {
                self.known.remove(&node);
                Some(Update::Deleted(node))
            }
            None => {
                let again = Instant::now() + ASK_AGAIN;
                self.unconfirmed.push_back((again, node));
                None
            }
        }
    }

    /// Waits for a change, while it is asked for what is unconfirmed.
    async fn watch(&mut self) -> Option<Update<K>> {
        let due = self.unconfirmed.front().map(|(again, _)| *again);
        let is_due = due.is_some_and(|due| due <= Instant::now());
        if self.asking.is_none()
            && is_due
            && let Some((_, node)) = self.unconfirmed.pop_front()
            && self.known.contains_key(&node)
        {
            self.asking = Some(ask(self.api.clone(), node).boxed());
        }
        let next_due = match self.asking {
            Some(_) => None,
            None => self.unconfirmed.front().map(|(again, _)| *again),
        };
        let Some(mut asking) = self.asking.take() else {
            let until = next_due.map_or(self.quiet_until, |due| due.min(self.quiet_until));
            return self.receive(until).await;
        };
        tokio::select! {
            (node, is_there) = &mut asking => self.confirmed(node, is_there),
            update = self.receive(self.quiet_until) => {
                self.asking = Some(asking);
                update
            }
        }
    }

    async fn receive(&mut self, until: Instant) -> Option<Update<K>> {
        let watching = matches!(self.state, State::Watching);
        match timeout_at(until, self.events.next()).await {
            Ok(Some(Ok(event))) => self.event(event),
            Ok(Some(Err(error))) => self.failed(error),
            // Something else is due.
            Err(_) if watching && Instant::now() < self.quiet_until => None,
            Ok(None) | Err(_) if watching => {
                self.restart(self.streams_lists);
                None
            }
            Ok(None) | Err(_) => {
                // A cluster that does not know how to stream a list may watch without one, in silence.
                self.restart(!self.streams_lists);
                Some(self.interrupted(format!("no list came within {SILENCE:?}")))
            }
        }
    }

    fn event(&mut self, event: Event<K>) -> Option<Update<K>> {
        if !matches!(event, Event::Init) {
            self.n_failures = 0;
        }
        self.quiet_until = Instant::now() + QUIET;
        match event {
            Event::Init => {
                self.n_lists += 1;
                let cut = matches!(self.state, State::Listing);
                self.state = State::Listing;
                cut.then(|| self.interrupted("the list was cut".to_owned()))
            }
            Event::InitApply(object) => {
                self.note(&object);
                Some(Update::Listed(object))
            }
            Event::InitDone => {
                self.unconfirmed.clear();
                self.asking = None;
                let missing = self.known.iter().filter(|(_, list)| **list != self.n_lists);
                self.state = State::Confirming(missing.map(|(node, _)| node.clone()).collect());
                None
            }
            Event::Apply(object) => {
                self.note(&object);
                Some(Update::Applied(object))
            }
            Event::Delete(object) => {
                let node = name(&object);
                self.known.remove(&node);
                Some(Update::Deleted(node))
            }
        }
    }

    fn note(&mut self, object: &K) {
        self.known.insert(name(object), self.n_lists);
    }

    fn failed(&mut self, error: watcher::Error) -> Option<Update<K>> {
        match error {
            // The next line of the stream is another object: a pause would make every node pay for one.
            watcher::Error::WatchFailed(error) if is_undecodable(&error) => {
                Some(Update::Undecodable(shortened(&error)))
            }
            error if self.streams_lists && refuses_to_stream(&error) => {
                tracing::info!(kind = %K::kind(&()), "cluster does not stream lists: listing in pages");
                self.restart(false);
                None
            }
            error => {
                if is_expired(&error) {
                    self.restart(self.streams_lists);
                } else if matches!(self.state, State::Listing) {
                    self.state = State::New;
                }
                Some(self.interrupted(shortened(&error)))
            }
        }
    }

    fn restart(&mut self, streams_lists: bool) {
        self.streams_lists = streams_lists;
        self.events = events(&self.api, streams_lists);
        self.state = State::New;
    }

    fn interrupted(&mut self, reason: String) -> Update<K> {
        let [least, most] = PAUSES;
        let pause = least.saturating_mul(1 << self.n_failures.min(16)).min(most);
        self.n_failures += 1;
        self.pause = Some(pause.mul_f64(rand::rng().random_range(0.5..1.0)));
        Update::Interrupted(reason)
    }
}

async fn ask<K: Watched>(api: Api<K>, node: NodeName) -> (NodeName, IsThere) {
    let found = timeout(GET_WITHIN, api.get_metadata_opt(node.as_str())).await;
    let is_there = match found {
        Ok(Ok(found)) => Some(found.is_some()),
        Ok(Err(_)) | Err(_) => None,
    };
    (node, is_there)
}

fn events<K: Watched>(
    api: &Api<K>,
    streams_lists: bool,
) -> BoxStream<'static, watcher::Result<Event<K>>> {
    let config = Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
    let config = if streams_lists {
        config.streaming_lists()
    } else {
        config
    };
    watcher(api.clone(), config).boxed()
}

/// Whether one line of the stream could not be read. Every JSON object passes for an empty Status there, so that is what
/// the client makes of most of them.
fn is_undecodable(error: &KubeError) -> bool {
    match error {
        KubeError::SerdeError(_) => true,
        KubeError::Api(status) => status.code == 0,
        _ => false,
    }
}

/// Whether the cluster does not take the parameters of a streamed list.
fn refuses_to_stream(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(KubeError::Api(status)) if matches!(status.code, 400 | 422))
}

/// Whether a watch cannot be resumed where it was cut.
fn is_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(KubeError::Api(status)) if status.code == 410)
}

fn name<K: Resource>(object: &K) -> NodeName {
    object.name_any().into()
}

/// The error in one line of bounded length.
fn shortened(error: &dyn std::error::Error) -> String {
    error.to_string().chars().take(MAX_REASON).collect()
}
