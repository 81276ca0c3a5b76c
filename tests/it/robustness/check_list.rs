//! A list, judged by the history.

use std::borrow::Cow;

use serde_json::Value;

use super::{
    history::{History, Place},
    property::{Property, Verdict},
    query::{Form, Selector},
    record::{ListAt, ListRecord, Page},
    schedule::Exactness,
};

/// How far a list is.
struct Progress<'a> {
    history: &'a History,
    list: &'a ListRecord,
    /// The version that it is of, once it is known.
    version: Option<u64>,
    /// The last object shown.
    last: Option<Place>,
}

pub(super) fn check(history: &History, list: &ListRecord) -> Verdict {
    let mut progress = Progress {
        history,
        list,
        version: None,
        last: None,
    };
    for (number, page) in list.pages.iter().enumerate() {
        match (number, progress.version) {
            (0, _) => progress.first(page)?,
            // The page before said that the version is forgotten: this one is of the newest.
            (_, None) => {
                progress.demand_code(page, 200)?;
                progress.version = Some(progress.newest(page)?);
                progress.show(page)?;
            }
            (_, Some(version)) => progress.next(page, version)?,
        }
    }
    Ok(())
}

impl Progress<'_> {
    /// The version of a first page is what was asked for.
    fn first(&mut self, page: &Page) -> Verdict {
        let limited = self.list.request.limit.is_some();
        let version = match self.list.request.at {
            ListAt::Unset | ListAt::Zero => {
                self.demand_code(page, 200)?;
                self.newest(page)?
            }
            ListAt::Version(version, Exactness::Exact) => return self.exact(page, version),
            ListAt::Version(version, Exactness::Unset) if limited => {
                return self.exact(page, version);
            }
            ListAt::Version(version, _) if version > page.heads.1 => {
                return self.demand_code(page, 504);
            }
            ListAt::Version(version, _) => {
                self.demand_code(page, 200)?;
                let found = self.newest(page)?;
                let what = || format!("{found} is older than {version}");
                Property::Fresh.demand(found >= version, what)?;
                found
            }
        };
        self.version = Some(version);
        self.show(page)
    }

    fn exact(&mut self, page: &Page, version: u64) -> Verdict {
        if version < self.history.oldest(page.heads.1) {
            return self.demand_code(page, 410);
        }
        self.demand_code(page, 200)?;
        let found = self.found(page)?;
        let what = || format!("{found} is not {version}");
        Property::Fresh.demand(found == version, what)?;
        self.version = Some(found);
        self.show(page)
    }

    fn next(&mut self, page: &Page, version: u64) -> Verdict {
        if version < self.history.oldest(page.heads.1) {
            self.demand_code(page, 410)?;
            let what = || format!("no way to go on: {}", page.body);
            Property::Expired.demand(page.token().is_some(), what)?;
            self.version = None;
            return Ok(());
        }
        self.demand_code(page, 200)?;
        let found = self.found(page)?;
        let what = || format!("a page of {found} in a list of {version}");
        Property::Paged.demand(found == version, what)?;
        self.show(page)
    }

    fn demand_code(&self, page: &Page, code: u16) -> Verdict {
        let property = match (code, page.code) {
            (410, _) | (_, 410) => Property::Expired,
            _ => Property::Fresh,
        };
        property.demand(page.code == code, || {
            format!("{} is not {code}: {}", page.code, page.body)
        })
    }

    fn found(&self, page: &Page) -> Verdict<u64> {
        match super::history::version_of(&page.body) {
            Some(version) => Ok(version),
            None => Property::Kinds.broken(format!("no version: {}", page.body)),
        }
    }

    /// The version of a list that is to be of the newest.
    fn newest(&self, page: &Page) -> Verdict<u64> {
        let version = self.found(page)?;
        let (before, after) = page.heads;
        Property::Fresh.demand((before..=after).contains(&version), || {
            format!("{version} was not the newest from {before} to {after}")
        })?;
        Ok(version)
    }

    /// A page shows the objects behind the last one shown, as many as it may, and says how many are left.
    fn show(&mut self, page: &Page) -> Verdict {
        let request = &self.list.request;
        let version = self.version.expect("it was settled");
        let there = self.history.snapshot(version);
        let rest: Vec<_> = there
            .into_iter()
            .filter(|(place, object)| {
                request.view.contains(object) && self.last.as_ref().is_none_or(|it| *place > it)
            })
            .collect();
        let shown = request.limit.unwrap_or(usize::MAX).min(rest.len());
        let wanted: Vec<_> = rest[..shown]
            .iter()
            .map(|(_, it)| request.view.form.of(it))
            .collect();
        let found = self.items(page)?;
        if !wanted
            .iter()
            .map(|it| &**it)
            .eq(found.iter().map(|it| &**it))
        {
            // What a first page shows wrong, no token can have made so.
            let property = match self.last {
                None => Property::Consistent,
                Some(_) => Property::Paged,
            };
            let wanted_names: Vec<_> = wanted.iter().map(|it| named(it)).collect();
            let found_names: Vec<_> = found.iter().map(|it| named(it)).collect();
            let what = format!("at {version} it shows {found_names:?} and not {wanted_names:?}");
            return property.broken(format!("{what}\n{found:?}\n{wanted:?}"));
        }
        self.count(page, rest.len() - shown)?;
        if let Some((place, _)) = rest[..shown].last() {
            self.last = Some(Place::clone(place));
        }
        Ok(())
    }

    fn count(&self, page: &Page, left: usize) -> Verdict {
        let is_told = page.token().is_some();
        let what = || format!("{left} are left: {}", page.body["metadata"]);
        Property::Paged.demand(is_told == (left > 0), what)?;
        let everything = self.list.request.view.selector == Selector::Everything;
        let counted = (everything && left > 0).then_some(left);
        let told = page.body["metadata"]["remainingItemCount"].as_u64();
        Property::Paged.demand(told == counted.map(|left| left as u64), what)
    }

    fn items<'p>(&self, page: &'p Page) -> Verdict<Vec<Cow<'p, Value>>> {
        let form = self.list.request.view.form;
        let body = &page.body;
        let (version, kind) = form.list_kind();
        let is_right = body["apiVersion"] == version && body["kind"] == kind;
        Property::Kinds.demand(is_right, || format!("not a {kind} of {version}: {body}"))?;
        let items = if form == Form::Table { "rows" } else { "items" };
        let Some(items) = body[items].as_array() else {
            return Property::Kinds.broken(format!("no items: {body}"));
        };
        Ok(items.iter().map(|item| form.told(item)).collect())
    }
}

fn named(item: &Value) -> String {
    let metadata = &item["metadata"];
    format!("{} {}", metadata["name"], metadata["resourceVersion"])
}
