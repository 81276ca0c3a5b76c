//! Laying a configuration over an object.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    element::Element,
    place::{Place, Sharing},
};
use crate::schema::ListType;

/// Makes `live` hold what `config` asks for. Nothing is removed: an empty or null object or list asks for no field or item.
pub(super) fn merge(place: Place<'_>, live: &mut Value, config: &Value) {
    match (place.sharing(), config) {
        (Sharing::Fields | Sharing::Deduced, Value::Object(fields)) => {
            merge_map(place, live, fields, config);
        }
        (Sharing::Fields | Sharing::Deduced, Value::Null) if has_fields(live) => {}
        (Sharing::Items(shared), Value::Array(items)) if !items.is_empty() => {
            let old = match live.take() {
                Value::Array(old) => old,
                _ => Vec::new(),
            };
            *live = Value::Array(merge_items(place, shared, old, items));
        }
        (Sharing::Items(_), _) if has_items(live) => {}
        _ => live.clone_from(config),
    }
}

fn merge_map(place: Place<'_>, live: &mut Value, fields: &Map<String, Value>, config: &Value) {
    let Value::Object(old) = live else {
        live.clone_from(config);
        return;
    };
    for (name, value) in fields {
        match old.get_mut(name) {
            Some(old) => merge(place.field(name), old, value),
            None => drop(old.insert(name.clone(), value.clone())),
        }
    }
}

fn has_fields(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| !fields.is_empty())
}

fn has_items(value: &Value) -> bool {
    value.as_array().is_some_and(|items| !items.is_empty())
}

/// Items of both, the configuration's in its order, the live list's others where they were between them.
///
/// Live items that cannot be told apart are replaced together by the configuration's one.
fn merge_items(
    place: Place<'_>,
    shared: ListType<'_>,
    mut live: Vec<Value>,
    config: &[Value],
) -> Vec<Value> {
    let matches = Matches::new(place, shared, &live, config);
    let mut merged = Vec::with_capacity(live.len().max(config.len()));
    let (mut at_live, mut at_config) = (0, 0);
    loop {
        let step = matches.step(at_live, at_config);
        at_live += usize::from(step.passes_live);
        match step.takes {
            Takes::Nothing => {}
            Takes::Live => merged.push(live[at_live - 1].take()),
            Takes::Config => {
                let config = &config[at_config];
                let item = match matches.live_of[at_config] {
                    Live::Once(index) => {
                        let mut item = live[index].take();
                        merge(place.item(), &mut item, config);
                        item
                    }
                    Live::Nowhere | Live::Repeatedly => config.clone(),
                };
                merged.push(item);
                at_config += 1;
            }
            Takes::End => return merged,
        }
    }
}

/// Which items of a live list and of a configuration are the same.
struct Matches {
    /// For each item of the configuration, where it is in the live list.
    live_of: Vec<Live>,
    /// For each live item, where it is in the configuration.
    config_of: Vec<Option<usize>>,
    /// For each item of the configuration and the end, the first from there on that the live list has, too.
    next_shared: Vec<Option<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Live {
    Nowhere,
    Once(usize),
    Repeatedly,
}

/// How both lists go on.
struct Step {
    passes_live: bool,
    takes: Takes,
}

/// What comes next in the merged list.
enum Takes {
    Nothing,
    Live,
    Config,
    End,
}

impl Matches {
    fn new(place: Place<'_>, shared: ListType<'_>, live: &[Value], config: &[Value]) -> Self {
        let element = |item: &Value| place.element(shared, item).ok();
        let by_element: BTreeMap<Element, usize> = config
            .iter()
            .enumerate()
            .filter_map(|(index, item)| Some((element(item)?, index)))
            .collect();
        let config_of: Vec<Option<usize>> = live
            .iter()
            .map(|item| by_element.get(&element(item)?).copied())
            .collect();
        let mut live_of = vec![Live::Nowhere; config.len()];
        for (index, config) in config_of.iter().enumerate() {
            if let Some(config) = *config {
                live_of[config] = match live_of[config] {
                    Live::Nowhere => Live::Once(index),
                    Live::Once(_) | Live::Repeatedly => Live::Repeatedly,
                };
            }
        }
        let mut next_shared = vec![None; config.len() + 1];
        for index in (0..config.len()).rev() {
            let shared = live_of[index] != Live::Nowhere;
            next_shared[index] = if shared {
                Some(index)
            } else {
                next_shared[index + 1]
            };
        }
        Self {
            live_of,
            config_of,
            next_shared,
        }
    }

    /// The order is that of Kubernetes, also for live lists with repeated items.
    fn step(&self, at_live: usize, at_config: usize) -> Step {
        let more = at_config < self.live_of.len();
        let config = if more { Takes::Config } else { Takes::Nothing };
        let step = |passes_live, takes| Step { passes_live, takes };
        match self.config_of.get(at_live) {
            None if more => step(false, config),
            None => step(false, Takes::End),
            Some(None) => step(true, Takes::Live),
            Some(&Some(index)) => match self.next_shared[at_config] {
                _ if index == at_config => step(true, config),
                // It comes where the configuration has it, behind others that both have.
                Some(shared) if shared != index => step(true, Takes::Nothing),
                // First what only the configuration has.
                Some(_) => step(false, config),
                // It has come.
                None => step(true, config),
            },
        }
    }
}
