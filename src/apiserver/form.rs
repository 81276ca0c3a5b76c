//! How objects, lists and watch events are written in each shape that a client can ask for.
//!
//! Everything is appended to a buffer piece by piece, so that a list of a million objects is never in memory at once. The
//! parts of a list come in an order in which what is known last, the metadata, stands last.

use std::borrow::Cow;

use bytes::Bytes;

use super::{
    Resource,
    negotiate::{IncludeObject, Shape},
};
use crate::{
    meta::{ResourceVersion, UnixTime},
    store::{Event, EventKind},
};

/// Annotation of the bookmark that ends the initial events of a watch.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// A writer of one resource's objects in one shape and API version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) shape: Shape,
    /// Index into the definition's versions.
    pub(super) version: usize,
}

/// What ends a list.
#[derive(Clone, Debug, Default)]
pub(super) struct ListEnd {
    pub(super) continue_token: Option<String>,
    pub(super) remaining: Option<usize>,
}

impl Form {
    /// One object.
    pub(super) fn object<R: Resource>(
        self,
        resource: &R,
        object: &R::Object,
        at: ResourceVersion,
        now: UnixTime,
        out: &mut Vec<u8>,
    ) {
        match self.shape {
            Shape::Object => resource.encode(object, at, self.version, out),
            Shape::Metadata => metadata_object(resource, object, at, out),
            Shape::Table { .. } => {
                self.list_head(resource, out);
                self.row(resource, object, at, now, out);
                self.list_tail(resource, at, &ListEnd::default(), out);
            }
        }
    }

    /// What stands before the first item of a list.
    pub(super) fn list_head<R: Resource>(self, resource: &R, out: &mut Vec<u8>) {
        let definition = resource.definition();
        match self.shape {
            Shape::Object => {
                extend(
                    out,
                    &[
                        "{\"apiVersion\":\"",
                        &definition.api_version(self.version),
                        "\",\"items\":[",
                    ],
                );
            }
            Shape::Metadata => extend(
                out,
                &[
                    "{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"meta.k8s.io/v1\",\"items\":[",
                ],
            ),
            Shape::Table { v1, .. } => {
                self.table_head(v1, out);
                extend(out, &["\"columnDefinitions\":"]);
                self.columns(resource, out);
                extend(out, &[",\"rows\":["]);
            }
        }
    }

    /// One item of a list. The caller puts the commas.
    pub(super) fn list_item<R: Resource>(
        self,
        resource: &R,
        object: &R::Object,
        at: ResourceVersion,
        now: UnixTime,
        out: &mut Vec<u8>,
    ) {
        match self.shape {
            Shape::Table { .. } => self.row(resource, object, at, now, out),
            Shape::Object | Shape::Metadata => self.object(resource, object, at, now, out),
        }
    }

    /// What stands behind the last item of a list.
    pub(super) fn list_tail<R: Resource>(
        self,
        resource: &R,
        at: ResourceVersion,
        end: &ListEnd,
        out: &mut Vec<u8>,
    ) {
        out.push(b']');
        if self.shape == Shape::Object {
            extend(out, &[",\"kind\":\"", resource.definition().kind, "List\""]);
        }
        extend(out, &[",\"metadata\":{"]);
        if let Some(token) = &end.continue_token {
            extend(out, &["\"continue\":\"", token, "\","]);
        }
        if let Some(remaining) = end.remaining {
            extend(
                out,
                &[
                    "\"remainingItemCount\":",
                    itoa::Buffer::new().format(remaining),
                    ",",
                ],
            );
        }
        extend(out, &["\"resourceVersion\":\"", &at.to_string(), "\"}}"]);
    }

    /// A watch event of the store as this kind of event for the watcher, encoded once for all watchers of this form.
    ///
    /// `first`: it is the first on its stream, which in a table carries the column definitions.
    pub(super) fn event<R: Resource>(
        self,
        resource: &R,
        event: &Event<R::Object>,
        kind: EventKind,
        first: bool,
        now: UnixTime,
    ) -> Bytes {
        let encode = || {
            let shown = match kind {
                EventKind::Deleted => event.before(),
                EventKind::Added | EventKind::Modified => event.after(),
            };
            let shown = shown.unwrap_or_else(|| event.object());
            let mut out = Vec::with_capacity(2_048);
            self.event_line(
                resource,
                kind,
                &shown.value,
                event.version(),
                first,
                now,
                &mut out,
            );
            out.into()
        };
        if first && matches!(self.shape, Shape::Table { .. }) {
            return encode();
        }
        event.encoded(self.number(kind), encode)
    }

    /// An ADDED event for an object that was there before the watch began.
    pub(super) fn initial_event<R: Resource>(
        self,
        resource: &R,
        object: &R::Object,
        at: ResourceVersion,
        first: bool,
        now: UnixTime,
        out: &mut Vec<u8>,
    ) {
        self.event_line(resource, EventKind::Added, object, at, first, now, out);
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "an event is this much, and only the two callers above name it"
    )]
    fn event_line<R: Resource>(
        self,
        resource: &R,
        kind: EventKind,
        object: &R::Object,
        at: ResourceVersion,
        first: bool,
        now: UnixTime,
        out: &mut Vec<u8>,
    ) {
        let word = match kind {
            EventKind::Added => "ADDED",
            EventKind::Modified => "MODIFIED",
            EventKind::Deleted => "DELETED",
        };
        extend(out, &["{\"type\":\"", word, "\",\"object\":"]);
        match self.shape {
            Shape::Table { v1, .. } => {
                self.table_head(v1, out);
                extend(out, &["\"columnDefinitions\":"]);
                if first {
                    self.columns(resource, out);
                } else {
                    extend(out, &["null"]);
                }
                extend(out, &[",\"rows\":["]);
                self.row(resource, object, at, now, out);
                extend(
                    out,
                    &[
                        "],\"metadata\":{\"resourceVersion\":\"",
                        &at.to_string(),
                        "\"}}",
                    ],
                );
            }
            Shape::Object | Shape::Metadata => self.object(resource, object, at, now, out),
        }
        extend(out, &["}\n"]);
    }

    /// A BOOKMARK at `at`; `ends_initial`: the one that closes the initial events.
    pub(super) fn bookmark<R: Resource>(
        self,
        resource: &R,
        at: ResourceVersion,
        ends_initial: bool,
        first: bool,
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        extend(&mut out, &["{\"type\":\"BOOKMARK\",\"object\":"]);
        match self.shape {
            Shape::Object => {
                let definition = resource.definition();
                bookmark_object(
                    &definition.api_version(self.version),
                    definition.kind,
                    at,
                    ends_initial,
                    &mut out,
                );
            }
            Shape::Metadata => bookmark_object(
                "meta.k8s.io/v1",
                "PartialObjectMetadata",
                at,
                ends_initial,
                &mut out,
            ),
            Shape::Table { v1, .. } => {
                self.table_head(v1, &mut out);
                extend(&mut out, &["\"columnDefinitions\":"]);
                if first {
                    self.columns(resource, &mut out);
                } else {
                    extend(&mut out, &["null"]);
                }
                // The row is there for its object alone, which carries the annotation whatever the client includes.
                extend(&mut out, &[",\"rows\":[{\"cells\":["]);
                let cells = 1 + resource.definition().versions[self.version].columns.len();
                extend(&mut out, &[&vec!["null"; cells].join(","), "],\"object\":"]);
                bookmark_object(
                    "meta.k8s.io/v1",
                    "PartialObjectMetadata",
                    at,
                    ends_initial,
                    &mut out,
                );
                extend(
                    &mut out,
                    &[
                        "}],\"metadata\":{\"resourceVersion\":\"",
                        &at.to_string(),
                        "\"}}",
                    ],
                );
            }
        }
        extend(&mut out, &["}\n"]);
        out
    }

    fn table_head(self, v1: bool, out: &mut Vec<u8>) {
        let version = if v1 { "v1" } else { "v1beta1" };
        extend(
            out,
            &[
                "{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/",
                version,
                "\",",
            ],
        );
    }

    fn columns<R: Resource>(self, resource: &R, out: &mut Vec<u8>) {
        let name = serde_json::json!({
            "name": "Name", "type": "string", "format": "name", "priority": 0,
            "description": "Name of the object, unique within its namespace.",
        });
        let rest = resource.definition().versions[self.version].columns.iter().map(|column| {
            serde_json::json!({
                "name": column.name, "type": column.kind, "format": "", "priority": column.priority,
                "description": column.description,
            })
        });
        let columns: Vec<_> = std::iter::once(name).chain(rest).collect();
        serde_json::to_writer(out, &columns).expect("a JSON value serializes into memory");
    }

    fn row<R: Resource>(
        self,
        resource: &R,
        object: &R::Object,
        at: ResourceVersion,
        now: UnixTime,
        out: &mut Vec<u8>,
    ) {
        let Shape::Table { include, .. } = self.shape else {
            return;
        };
        extend(out, &["{\"cells\":["]);
        json_string(crate::store::Value::name(object), out);
        resource.encode_cells(object, self.version, now, out);
        extend(out, &["],\"object\":"]);
        match include {
            IncludeObject::None => extend(out, &["null"]),
            IncludeObject::Metadata => metadata_object(resource, object, at, out),
            IncludeObject::Object => resource.encode(object, at, self.version, out),
        }
        out.push(b'}');
    }

    /// The number under which an event's encoding is shared: forms and kinds with equal numbers have equal bytes.
    fn number(self, kind: EventKind) -> u32 {
        let shape = match self.shape {
            Shape::Object => 0,
            Shape::Metadata => 1,
            Shape::Table { v1, include } => 2 + 3 * u32::from(v1) + include as u32,
        };
        let version = u32::try_from(self.version).unwrap_or(u32::MAX >> 8);
        (version << 8) | (shape << 2) | kind as u32
    }
}

fn metadata_object<R: Resource>(
    resource: &R,
    object: &R::Object,
    at: ResourceVersion,
    out: &mut Vec<u8>,
) {
    extend(
        out,
        &["{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":"],
    );
    resource.encode_metadata(object, at, out);
    out.push(b'}');
}

fn bookmark_object(
    api_version: &str,
    kind: &str,
    at: ResourceVersion,
    ends_initial: bool,
    out: &mut Vec<u8>,
) {
    let annotations: Cow<'_, str> = if ends_initial {
        format!("\"annotations\":{{\"{INITIAL_EVENTS_END}\":\"true\"}},").into()
    } else {
        "".into()
    };
    extend(
        out,
        &[
            "{\"kind\":\"",
            kind,
            "\",\"apiVersion\":\"",
            api_version,
            "\",\"metadata\":{",
            &annotations,
            "\"resourceVersion\":\"",
            &at.to_string(),
            "\"}}",
        ],
    );
}

fn extend(out: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Appends `text` as a JSON string.
pub(super) fn json_string(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a string serializes into memory");
}
