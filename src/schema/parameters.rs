//! Query parameters of the API's verbs.
//!
//! They are written into each operation instead of being shared by reference: kubectl looks for `fieldValidation` and
//! `dryRun` in the operation itself.

/// A query parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    /// `string`, `integer` or `boolean`.
    pub(super) kind: &'static str,
    pub(super) description: &'static str,
}

const fn parameter(name: &'static str, kind: &'static str, description: &'static str) -> Parameter {
    Parameter {
        name,
        kind,
        description,
    }
}

pub(super) const PRETTY: Parameter = parameter(
    "pretty",
    "string",
    "Whether the answer is indented. Unset: only for browsers, curl and wget.",
);

const DRY_RUN: Parameter = parameter(
    "dryRun",
    "string",
    "`All`: the request is checked and answered, and nothing is done. No other value is allowed.",
);
const FIELD_MANAGER: Parameter = parameter(
    "fieldManager",
    "string",
    "Name of who owns the fields that are written: at most 128 printable characters. An apply needs one.",
);
const FIELD_VALIDATION: Parameter = parameter(
    "fieldValidation",
    "string",
    "What unknown and duplicate fields lead to: `Ignore` nothing, `Warn` (default) a warning, `Strict` an error.",
);
const FORCE: Parameter = parameter(
    "force",
    "boolean",
    "Whether an apply takes over fields that others own. For an apply only.",
);
const GRACE_PERIOD_SECONDS: Parameter = parameter(
    "gracePeriodSeconds",
    "integer",
    "Seconds before the object is deleted; zero: at once. Unset: what its type says.",
);
const ORPHAN_DEPENDENTS: Parameter = parameter(
    "orphanDependents",
    "boolean",
    "Deprecated, use propagationPolicy: whether the object's dependents are kept.",
);
const PROPAGATION_POLICY: Parameter = parameter(
    "propagationPolicy",
    "string",
    "What becomes of the object's dependents: `Orphan` keeps them, `Background` deletes them afterwards, `Foreground` before.",
);
const CONTINUE: Parameter = parameter(
    "continue",
    "string",
    "The token of the page before, whose other parameters must be the same. An expired one is answered with 410.",
);
const FIELD_SELECTOR: Parameter = parameter(
    "fieldSelector",
    "string",
    "Only objects whose fields match this selector.",
);
const LABEL_SELECTOR: Parameter = parameter(
    "labelSelector",
    "string",
    "Only objects whose labels match this selector.",
);
const LIMIT: Parameter = parameter(
    "limit",
    "integer",
    "Most objects of a page. All pages show the objects as of the first.",
);
const RESOURCE_VERSION: Parameter = parameter(
    "resourceVersion",
    "string",
    "The version of the data to answer from; its meaning depends on resourceVersionMatch.",
);
const RESOURCE_VERSION_MATCH: Parameter = parameter(
    "resourceVersionMatch",
    "string",
    "`Exact`: the data as of resourceVersion; `NotOlderThan`: of that version or a later one.",
);
const SEND_INITIAL_EVENTS: Parameter = parameter(
    "sendInitialEvents",
    "boolean",
    "Whether a watch begins with the present objects and a bookmark after them.",
);
const TIMEOUT_SECONDS: Parameter = parameter(
    "timeoutSeconds",
    "integer",
    "Seconds after which a list or watch ends.",
);
const ALLOW_WATCH_BOOKMARKS: Parameter = parameter(
    "allowWatchBookmarks",
    "boolean",
    "Whether a watch may carry bookmarks, which tell of a resourceVersion and of no change.",
);
const WATCH: Parameter = parameter(
    "watch",
    "boolean",
    "Whether changes are streamed instead of a list.",
);

pub(super) const WRITE: &[Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
pub(super) const PATCH: &[Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE];
pub(super) const DELETE: &[Parameter] = &[
    DRY_RUN,
    GRACE_PERIOD_SECONDS,
    ORPHAN_DEPENDENTS,
    PROPAGATION_POLICY,
];
pub(super) const LIST: &[Parameter] = &[
    CONTINUE,
    FIELD_SELECTOR,
    LABEL_SELECTOR,
    LIMIT,
    RESOURCE_VERSION,
    RESOURCE_VERSION_MATCH,
    TIMEOUT_SECONDS,
];
pub(super) const WATCH_TOO: &[Parameter] = &[ALLOW_WATCH_BOOKMARKS, SEND_INITIAL_EVENTS, WATCH];
