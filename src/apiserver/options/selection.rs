//! Which objects a request is about.

use crate::{
    apiserver::{Status, query::Query},
    meta::{FieldSelector, LabelSelector, SelectorError},
};

/// Which objects a list, a watch or a deletecollection is about.
#[derive(Clone, Debug, Default)]
pub(in crate::apiserver) struct Selection {
    pub(in crate::apiserver) labels: LabelSelector,
    pub(in crate::apiserver) fields: FieldSelector,
}

/// The selectors of a query as its authorization sees them: each that can be read, whether or not the resource has such fields.
#[derive(Clone, Debug, Default)]
pub(in crate::apiserver) struct Selectors {
    pub(in crate::apiserver) labels: Option<LabelSelector>,
    pub(in crate::apiserver) fields: Option<FieldSelector>,
}

impl Selectors {
    pub(in crate::apiserver) fn read(query: &Query) -> Self {
        let text = |name| query.get(name).unwrap_or_default();
        Self {
            labels: text("labelSelector").parse().ok(),
            fields: text("fieldSelector").parse().ok(),
        }
    }

    /// The one object that is asked for. As in kube-apiserver, none is read from a query of which a part makes no sense.
    pub(in crate::apiserver) fn name(&self) -> Option<&str> {
        self.labels.as_ref()?;
        self.fields.as_ref()?.required_value("metadata.name")
    }
}

impl Selection {
    /// Reads `labelSelector` and `fieldSelector`; the fields must be of those that `selectable` names.
    pub(in crate::apiserver) fn parse(query: &Query, selectable: &[&str]) -> Result<Self, Status> {
        let labels = query.get("labelSelector").unwrap_or_default().parse();
        let labels =
            labels.map_err(|error: SelectorError| Status::bad_request(error.to_string()))?;
        let fields: FieldSelector = query
            .get("fieldSelector")
            .unwrap_or_default()
            .parse()
            .map_err(|error: SelectorError| Status::bad_request(error.to_string()))?;
        let known = |path: &str| {
            matches!(path, "metadata.name" | "metadata.namespace") || selectable.contains(&path)
        };
        match fields
            .requirements()
            .iter()
            .find(|field| !known(&field.path))
        {
            None => Ok(Self { labels, fields }),
            Some(field) => {
                let path: String = field.path.chars().take(128).collect();
                Err(Status::bad_request(format!(
                    "field label not supported: {path}"
                )))
            }
        }
    }

    pub(in crate::apiserver) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}
