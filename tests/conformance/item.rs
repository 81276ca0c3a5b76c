//! An item of the scoreboard, and the macro that makes tests of a list of them.

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Priority {
    /// Clients break without it.
    P0,
    /// Expected of a good server.
    P1,
    /// Excellent.
    P2,
}

/// Whether an item is tested, and of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Tested; any resource behind kube-apiserver can be asked the same.
    Compared,
    /// Tested; it is about this server's own process, port, nodes or manifests.
    Ours,
    /// Not built yet, with the reason.
    Later(&'static str),
    /// Left out on purpose, with the reason.
    Left(&'static str),
}

/// What a server has to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// The name of its function: `c_118` for C-118.
    pub(super) function: &'static str,
    pub(super) priority: Priority,
    /// One sentence.
    pub(super) title: &'static str,
    pub(super) standing: Standing,
}

impl Item {
    pub(super) fn id(&self) -> String {
        self.function.replace("c_", "C-")
    }
}

/// `items! { c_118 P0 "Events are JSON, a line each"; }`: the list, and two tests for each item from the function of its name.
///
/// After the title may follow `, ours`, `, later "why"` or `, left "why"`; see [`Standing`]. The last two have no function.
macro_rules! items {
    ($($id:ident $priority:ident $title:literal $(, $standing:ident $($why:literal)?)?;)*) => {
        pub(super) const ITEMS: &[crate::conformance::item::Item] = &[$(
            crate::conformance::item::Item {
                function: stringify!($id),
                priority: crate::conformance::item::Priority::$priority,
                title: $title,
                standing: standing!($($standing $($why)?)?),
            },
        )*];
        $(tests!($id $($standing)?);)*
    };
}

macro_rules! standing {
    () => {
        crate::conformance::item::Standing::Compared
    };
    (ours) => {
        crate::conformance::item::Standing::Ours
    };
    (later $why:literal) => {
        crate::conformance::item::Standing::Later($why)
    };
    (left $why:literal) => {
        crate::conformance::item::Standing::Left($why)
    };
}

macro_rules! tests {
    ($id:ident later) => {};
    ($id:ident left) => {};
    ($id:ident $(ours)?) => {
        mod $id {
            #[tokio::test]
            async fn holds() {
                crate::conformance::run::holds(super::$id, super::ITEMS, stringify!($id)).await;
            }

            #[tokio::test]
            async fn fails_on_a_stub() {
                crate::conformance::run::fails_on_a_stub(super::$id).await;
            }
        }
    };
}
