//! What a reader asks for, and what it then must see of an object, told without the server's own code.

use std::{borrow::Cow, fmt::Write, rc::Rc};

use sandbox_apiserver::api::labels;
use serde_json::{Value, json};

use crate::harness::{METADATA, METADATA_LIST, TABLE};

/// How objects are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// Whole, in the version that is stored.
    Beta,
    /// Whole, in the older version.
    Alpha,
    /// `PartialObjectMetadata`.
    Metadata,
    /// Rows of a table, asked for in the older version.
    Table,
}

/// Which objects are asked for by label or field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selector {
    Everything,
    Color(&'static str),
    NotColor(&'static str),
    Colorless,
    Running,
    Node(usize),
    Named(&'static str),
    NotNamed(&'static str),
}

/// Which objects, and how they are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) form: Form,
    /// `None`: all namespaces.
    pub(super) namespace: Option<&'static str>,
    pub(super) selector: Selector,
}

impl Form {
    pub(super) const ALL: [Self; 4] = [Self::Beta, Self::Alpha, Self::Metadata, Self::Table];

    pub(super) fn version(self) -> &'static str {
        match self {
            Self::Beta | Self::Metadata => "v1beta1",
            Self::Alpha | Self::Table => "v1alpha1",
        }
    }

    pub(super) fn accept(self, list: bool) -> &'static str {
        match self {
            Self::Beta | Self::Alpha => "application/json",
            Self::Metadata if list => METADATA_LIST,
            Self::Metadata => METADATA,
            Self::Table => TABLE,
        }
    }

    /// `apiVersion` and `kind` of what stands in a watch event.
    pub(super) fn kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Beta => ("agents.x-k8s.io/v1beta1", "Sandbox"),
            Self::Alpha => ("agents.x-k8s.io/v1alpha1", "Sandbox"),
            Self::Metadata => ("meta.k8s.io/v1", "PartialObjectMetadata"),
            Self::Table => ("meta.k8s.io/v1", "Table"),
        }
    }

    pub(super) fn list_kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Beta => ("agents.x-k8s.io/v1beta1", "SandboxList"),
            Self::Alpha => ("agents.x-k8s.io/v1alpha1", "SandboxList"),
            Self::Metadata => ("meta.k8s.io/v1", "PartialObjectMetadataList"),
            Self::Table => ("meta.k8s.io/v1", "Table"),
        }
    }

    /// What must be seen of an object, of which `whole` is what a reader of [`Form::Beta`] sees.
    pub(super) fn of(self, whole: &Rc<Value>) -> Rc<Value> {
        let metadata = &whole["metadata"];
        Rc::new(match self {
            Self::Beta => return whole.clone(),
            Self::Alpha => {
                let mut object = Value::clone(whole);
                object["apiVersion"] = self.kind().0.into();
                let spec = object["spec"].as_object_mut().unwrap();
                let mode = spec.remove("operatingMode");
                let replicas = u8::from(mode == Some("Running".into()));
                spec.insert("replicas".to_owned(), replicas.into());
                object["status"].as_object_mut().unwrap().remove("nodeName");
                object
            }
            Self::Metadata => {
                let (version, kind) = self.kind();
                json!({"apiVersion": version, "kind": kind, "metadata": metadata})
            }
            Self::Table => {
                let conditions = whole["status"]["conditions"].as_array().unwrap();
                let ready = conditions.iter().find(|it| it["type"] == "Ready").unwrap();
                json!({
                    "cells": [metadata["name"], ready["status"], ready["reason"], whole["status"]["nodeName"]],
                    "metadata": metadata,
                })
            }
        })
    }

    /// The part of what was sent that [`Form::of`] tells: all but the times in a table, and whether an older version counts a
    /// sandbox whose VM is gone.
    pub(super) fn told(self, sent: &Value) -> Cow<'_, Value> {
        match self {
            Self::Beta | Self::Metadata => Cow::Borrowed(sent),
            Self::Alpha => {
                let mut object = Value::clone(sent);
                if let Some(status) = object["status"].as_object_mut() {
                    status.remove("replicas");
                }
                Cow::Owned(object)
            }
            Self::Table => {
                let (cells, object) = (&sent["cells"], &sent["object"]);
                Cow::Owned(json!({
                    "cells": [cells[0], cells[1], cells[2], cells[4]],
                    "metadata": object["metadata"],
                }))
            }
        }
    }
}

impl Selector {
    pub(super) fn matches(self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let label = |key: &str| metadata["labels"][key].as_str();
        match self {
            Self::Everything => true,
            Self::Color(color) => label("color") == Some(color),
            Self::NotColor(color) => label("color") != Some(color),
            Self::Colorless => label("color").is_none(),
            Self::Running => label(labels::PHASE) == Some("Running"),
            Self::Node(node) => object["status"]["nodeName"] == super::nodes::name(node).as_str(),
            Self::Named(name) => metadata["name"] == name,
            Self::NotNamed(name) => metadata["name"] != name,
        }
    }

    fn query(self) -> String {
        match self {
            Self::Everything => String::new(),
            Self::Color(color) => format!("&labelSelector=color%3D{color}"),
            Self::NotColor(color) => format!("&labelSelector=color%20notin%20({color})"),
            Self::Colorless => "&labelSelector=!color".to_owned(),
            Self::Running => format!("&labelSelector={}%3DRunning", labels::PHASE),
            Self::Node(node) => {
                let node = super::nodes::name(node);
                format!("&fieldSelector=status.nodeName%3D{node}")
            }
            Self::Named(name) => format!("&fieldSelector=metadata.name%3D{name}"),
            Self::NotNamed(name) => format!("&fieldSelector=metadata.name!%3D{name}"),
        }
    }
}

impl View {
    pub(super) fn contains(&self, object: &Value) -> bool {
        let inside = self
            .namespace
            .is_none_or(|it| object["metadata"]["namespace"] == it);
        inside && self.selector.matches(object)
    }

    /// The path with its query, ready for more parameters.
    pub(super) fn path(&self, more: &str) -> String {
        let mut path = format!("/apis/agents.x-k8s.io/{}", self.form.version());
        if let Some(namespace) = self.namespace {
            write!(path, "/namespaces/{namespace}").unwrap();
        }
        format!("{path}/sandboxes?{more}{}", self.selector.query())
    }
}
