//! The scoreboard: what makes a server one that Kubernetes' clients cannot tell from a built-in API, item by item.
//!
//! Every item is a function named after its id, which asks a [`Subject`](subject::Subject) and panics at a wrong answer.
//! `items!` makes two tests of it: it holds for the product behind a real kube-apiserver, and it fails for a stub that
//! answers `200 {}` to everything, so that no item can pass without looking. `hack/conformance` prints the table and can
//! ask a custom resource of the same schema instead; `docs/conformance.md` is made from the lists here.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

#[macro_use]
mod item;

mod agent_node;
mod authentication;
mod authorization;
mod client;
mod command;
mod controllers;
mod creates;
mod credentials;
mod deletes;
mod discovery;
mod document;
mod documents;
mod grants;
mod hygiene;
mod lists;
mod negotiation;
mod openapi;
mod relay;
mod run;
mod server;
mod shown;
mod stub;
mod subject;
mod subresources;
mod transport;
mod updates;
mod watches;
mod witness;
mod writes;

use item::Item;

/// All items, in the order of their ids.
const SECTIONS: [(&str, &[Item]); 14] = [
    ("TLS, registration, proxy", transport::ITEMS),
    ("Authentication", authentication::ITEMS),
    ("Authorization", authorization::ITEMS),
    ("Discovery", discovery::ITEMS),
    ("OpenAPI", openapi::ITEMS),
    ("Content negotiation", negotiation::ITEMS),
    ("Get and list", lists::ITEMS),
    ("Watch", watches::ITEMS),
    ("Create", creates::ITEMS),
    ("Update, patch, apply", updates::ITEMS),
    ("Delete", deletes::ITEMS),
    ("Subresources and streams", subresources::ITEMS),
    ("Controllers", controllers::ITEMS),
    ("Limits, errors, lifecycle", hygiene::ITEMS),
];
