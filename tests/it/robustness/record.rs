//! What is left of a schedule when it is over: what everybody was told, to be judged.

use serde_json::Value;

use super::{
    query::{Form, View},
    schedule::Exactness,
    watcher::WatchRecord,
};

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Changes that the server remembers.
    pub(super) history: u64,
    /// The newest version when it began; nothing was there.
    pub(super) began: u64,
    pub(super) ended: u64,
    /// What one watcher of everything saw, from the beginning to the end.
    pub(super) reference: Option<WatchRecord>,
    pub(super) watches: Vec<WatchRecord>,
    pub(super) lists: Vec<ListRecord>,
    pub(super) writes: Vec<WriteRecord>,
    pub(super) truths: Vec<Truth>,
    pub(super) dead: Vec<Dead>,
    /// Versions before and after what must change nothing, and what that was.
    pub(super) quiet: Vec<(u64, u64, &'static str)>,
}

/// The version that a list names.
#[derive(Clone, Copy, Debug)]
pub(super) enum ListAt {
    Unset,
    Zero,
    Version(u64, Exactness),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ListRequest {
    pub(super) view: View,
    pub(super) at: ListAt,
    pub(super) limit: Option<usize>,
}

/// A list, page by page.
#[derive(Debug)]
pub(super) struct ListRecord {
    pub(super) request: ListRequest,
    pub(super) pages: Vec<Page>,
}

#[derive(Debug)]
pub(super) struct Page {
    /// The newest version before and after it was asked for.
    pub(super) heads: (u64, u64),
    pub(super) code: u16,
    pub(super) body: Value,
}

/// What a user asks for with a write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    Color(Option<&'static str>),
    /// That its finalizer is there, or not.
    Finalizer(bool),
    /// That the object goes.
    End,
}

/// A write of a user, and what the server says right after it.
#[derive(Debug)]
pub(super) struct WriteRecord {
    pub(super) verb: &'static str,
    pub(super) form: Form,
    pub(super) heads: (u64, u64),
    /// Namespace and name, and uid of what was there.
    pub(super) place: (String, String),
    pub(super) uid: String,
    pub(super) wish: Wish,
    /// Nothing is to happen.
    pub(super) dry: bool,
    pub(super) code: u16,
    pub(super) answer: Value,
    /// The GET that follows.
    pub(super) read_code: u16,
    pub(super) read: Value,
}

/// What is so at a version, because a node said it.
#[derive(Debug)]
pub(super) struct Truth {
    pub(super) at: u64,
    pub(super) uid: String,
    /// `None`: not listed.
    pub(super) phase: Option<Phase>,
    /// What else is known of it, if it is listed.
    pub(super) looks: Option<Looks>,
    pub(super) reason: &'static str,
}

/// What is to be seen of a sandbox beside its phase.
#[derive(Clone, Debug)]
pub(super) struct Looks {
    pub(super) node: String,
    /// `<namespace>/<name>`, as it was claimed.
    pub(super) claim_ref: String,
    /// How the name begins that it gets when that one is another's.
    pub(super) id_name: String,
    /// Where no user gave it another one.
    pub(super) color: Option<Option<&'static str>>,
}

/// What the phase of a listed sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Anything: the server may know better.
    Any,
    Is(&'static str),
}

/// A sandbox that is gone for good, or until its node says otherwise.
#[derive(Debug)]
pub(super) struct Dead {
    pub(super) uid: String,
    /// The version at which it is known to be gone.
    pub(super) since: u64,
    pub(super) until: u64,
}

impl ListRequest {
    pub(super) fn path(&self, token: Option<&str>) -> String {
        let mut more = match (token, self.at) {
            (Some(token), _) => format!("continue={token}"),
            (None, ListAt::Unset) => String::new(),
            (None, ListAt::Zero) => "resourceVersion=0".to_owned(),
            (None, ListAt::Version(version, exact)) => {
                let matching = match exact {
                    Exactness::Unset => "",
                    Exactness::Exact => "&resourceVersionMatch=Exact",
                    Exactness::NotOlderThan => "&resourceVersionMatch=NotOlderThan",
                };
                format!("resourceVersion={version}{matching}")
            }
        };
        if let Some(limit) = self.limit {
            more.push_str(&format!("&limit={limit}"));
        }
        self.view.path(&more)
    }
}
