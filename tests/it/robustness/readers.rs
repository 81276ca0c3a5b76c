//! What readers do: watches that come and go, and lists in pages.

use super::{
    play::Player,
    query::View,
    record::{ListAt, ListRecord, ListRequest, Page, Record},
    schedule::{Exactness, Start, Step},
    watcher::{From, WatchRequest, Watcher},
};

/// Those who are there.
#[derive(Default)]
pub(super) struct Readers {
    watchers: Vec<Watcher>,
    /// Lists that may go on, by their place in the record, each with the token.
    pagers: Vec<(usize, String)>,
}

impl Readers {
    /// Notes that nothing is under way.
    pub(super) fn mark(&mut self, head: u64, after_a_minute: bool) {
        for watcher in &mut self.watchers {
            watcher.mark(head, after_a_minute);
        }
    }

    pub(super) fn unstall(&self) {
        for watcher in &self.watchers {
            watcher.reads(true);
        }
    }

    /// Ends all watches, of which the first is the reference.
    pub(super) fn close(&mut self, record: &mut Record) {
        let mut watchers = std::mem::take(&mut self.watchers).into_iter();
        record.reference = watchers.next().map(Watcher::close);
        record.watches.extend(watchers.map(Watcher::close));
    }

    /// The `pick`th watch but the first, which is the reference.
    fn pick(&self, pick: u32) -> Option<usize> {
        let others = self.watchers.len().checked_sub(1).filter(|n| *n > 0)?;
        Some(1 + pick as usize % others)
    }
}

impl Player<'_> {
    pub(super) async fn look(&mut self, step: &Step) {
        match *step {
            Step::Watch {
                view,
                from,
                bookmarks,
                timeout,
            } => {
                let request = WatchRequest {
                    view,
                    from: self.from(from),
                    bookmarks,
                    timeout,
                };
                self.watch(request).await;
            }
            Step::Disconnect { pick } => {
                if let Some(index) = self.readers.pick(pick) {
                    self.leave(index);
                }
            }
            Step::Reconnect { pick, list } => self.reconnect(pick, list).await,
            Step::Stall { pick } => {
                if let Some(index) = self.readers.pick(pick) {
                    self.readers.watchers[index].reads(false);
                }
            }
            Step::Unstall { pick } => {
                if let Some(index) = self.readers.pick(pick) {
                    self.readers.watchers[index].reads(true);
                }
            }
            Step::List {
                view,
                start,
                exact,
                limit,
            } => {
                let at = self.at(start, exact);
                self.list(ListRequest { view, at, limit }).await;
            }
            Step::NextPage { pick } => self.next_page(pick).await,
            Step::ListAhead { view, then } => self.list_ahead(view, then).await,
            _ => unreachable!("{step:?} is nobody's"),
        }
    }

    pub(super) async fn watch(&mut self, request: WatchRequest) {
        let before = self.house.head();
        let accept = request.view.form.accept(false);
        let path = request.path();
        let answer = self.house.open("GET", &path, accept, String::new()).await;
        assert_eq!(answer.status(), 200, "{path}");
        let opened = (before, self.house.head());
        let watcher = Watcher::new(request, opened, answer.into_body());
        self.readers.watchers.push(watcher);
    }

    fn leave(&mut self, index: usize) {
        let watcher = self.readers.watchers.swap_remove(index);
        self.record.watches.push(watcher.close());
    }

    async fn reconnect(&mut self, pick: u32, list: bool) {
        let Some(index) = self.readers.pick(pick) else {
            return;
        };
        let watcher = &self.readers.watchers[index];
        let Some(seen) = watcher.last_version() else {
            return;
        };
        let from = match list {
            true => From::List(Some(seen)),
            false => From::After(seen),
        };
        let request = WatchRequest {
            from,
            ..watcher.request
        };
        self.leave(index);
        self.watch(request).await;
    }

    fn from(&self, start: Start) -> From {
        match start {
            Start::Unset => From::Anything { zero: false },
            Start::Zero => From::Anything { zero: true },
            Start::Back(changes) => From::After(self.back(changes)),
            Start::Ahead(changes) => From::After(self.house.head() + changes),
            Start::Initial(changes) => From::List(changes.map(|changes| self.back(changes))),
        }
    }

    fn at(&self, start: Start, exact: Exactness) -> ListAt {
        match start {
            Start::Unset | Start::Initial(None) => ListAt::Unset,
            Start::Zero | Start::Ahead(_) => ListAt::Zero,
            Start::Back(changes) | Start::Initial(Some(changes)) => {
                ListAt::Version(self.back(changes), exact)
            }
        }
    }

    fn back(&self, changes: u64) -> u64 {
        let back = self.house.head().saturating_sub(changes);
        back.max(self.record.began)
    }

    async fn list(&mut self, request: ListRequest) {
        let page = self.page(&request, None).await;
        let token = page.token();
        let pages = vec![page];
        self.record.lists.push(ListRecord { request, pages });
        let place = self.record.lists.len() - 1;
        self.readers
            .pagers
            .extend(token.map(|token| (place, token)));
    }

    async fn next_page(&mut self, pick: u32) {
        let pagers = &mut self.readers.pagers;
        if pagers.is_empty() {
            return;
        }
        let (place, token) = pagers.swap_remove(pick as usize % pagers.len());
        let request = self.record.lists[place].request;
        let page = self.page(&request, Some(&token)).await;
        let token = page.token();
        self.record.lists[place].pages.push(page);
        self.readers
            .pagers
            .extend(token.map(|token| (place, token)));
    }

    async fn page(&self, request: &ListRequest, token: Option<&str>) -> Page {
        let before = self.house.head();
        let accept = request.view.form.accept(true);
        let path = request.path(token);
        let answer = self.house.ask("GET", &path, accept, String::new()).await;
        Page {
            heads: (before, self.house.head()),
            code: answer.code,
            body: answer.json(),
        }
    }

    /// A list that waits for the next change, and that change, if there is one.
    async fn list_ahead(&mut self, view: View, then: bool) {
        let before = self.house.head();
        let wanted = ListAt::Version(before + 1, Exactness::NotOlderThan);
        let request = ListRequest {
            view,
            at: wanted,
            limit: None,
        };
        let house = self.house;
        let accept = view.form.accept(true);
        let path = request.path(None);
        let answer = house.ask("GET", &path, accept, String::new());
        let change = async {
            if then {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                self.touch();
            }
        };
        let (answer, ()) = tokio::join!(answer, change);
        let page = Page {
            heads: (before, house.head()),
            code: answer.code,
            body: answer.json(),
        };
        let pages = vec![page];
        self.record.lists.push(ListRecord { request, pages });
    }
}

impl Page {
    /// By which the list goes on.
    pub(super) fn token(&self) -> Option<String> {
        Some(self.body["metadata"]["continue"].as_str()?.to_owned())
    }
}
