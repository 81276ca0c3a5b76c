//! What the server's controllers share: watches, calls to kube-apiserver with a deadline, and conditions of a status.

mod call;
mod condition;
mod follow;

pub use call::{CallError, within};
pub use condition::Said;
pub use follow::{Events, follow, until_served};
