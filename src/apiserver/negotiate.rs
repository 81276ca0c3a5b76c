//! What an answer looks like, chosen from the request's Accept header; and what a body is, from its Content-Type.

use http::{HeaderMap, header};

use super::Status;
use crate::schema::PatchType;

/// Media types of answers, as the 406 names them.
const ACCEPTED: [&str; 2] = ["application/json", "application/yaml"];
/// Longest Accept header read; longer ones are cut, as no client has that many wishes.
const MAX_ACCEPT: usize = 4_096;
const META_GROUP: &str = "meta.k8s.io";

/// Serialization of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MediaType {
    Json,
    Yaml,
}

impl MediaType {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
        }
    }
}

/// What a table's rows carry beside their cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IncludeObject {
    None,
    Metadata,
    Object,
}

/// Shape of an object or a list in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// As it is.
    Object,
    /// Its metadata alone.
    Metadata,
    /// Rows of cells, in `meta.k8s.io/v1` or `v1beta1`.
    Table { v1: bool, include: IncludeObject },
}

/// A negotiated answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Negotiated {
    pub(super) media_type: MediaType,
    pub(super) shape: Shape,
}

/// Which shapes a request can be answered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// Plain only: answers of writes, errors.
    Plain,
    /// One object or a watch: also its metadata or a table.
    Object,
    /// A list: also the list of metadata or a table.
    List,
}

/// One clause of an Accept header.
#[derive(Debug)]
struct Clause<'a> {
    kind: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

/// The clauses of an Accept header, the most wanted first: by falling quality, and of one quality those that name a type
/// before those that take any.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let texts = accept.split(',').map(str::trim);
    let clauses = texts.filter(|text| !text.is_empty()).map(Clause::parse);
    let mut wanted: Vec<_> = clauses.filter(|clause| clause.quality() > 0.0).collect();
    wanted.sort_by(|one, other| {
        let quality = other.quality().total_cmp(&one.quality());
        quality.then(one.n_wildcards().cmp(&other.n_wildcards()))
    });
    wanted
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let parameters = parts.filter_map(|part| part.split_once('=')).collect();
        Self { kind, parameters }
    }

    fn quality(&self) -> f32 {
        let quality = self.parameter("q").and_then(|value| value.parse().ok());
        quality.unwrap_or(1.0)
    }

    fn n_wildcards(&self) -> usize {
        self.kind.split('/').filter(|part| *part == "*").count()
    }

    fn parameter(&self, key: &str) -> Option<&'a str> {
        let found = self.parameters.iter().find(|(known, _)| *known == key);
        found.map(|(_, value)| *value)
    }

    fn media_type(&self) -> Option<MediaType> {
        match self.kind {
            "application/json" | "*/*" | "application/*" => Some(MediaType::Json),
            "application/yaml" => Some(MediaType::Yaml),
            _ => None,
        }
    }

    /// The shape that the clause asks for, if the request can be answered so.
    fn shape(&self, offer: Offer) -> Option<Shape> {
        let Some(shape) = self.parameter("as") else {
            return Some(Shape::Object);
        };
        if self.parameter("g").is_some_and(|group| group != META_GROUP) {
            return None;
        }
        let v1 = match self.parameter("v") {
            None | Some("v1") => true,
            Some("v1beta1") => false,
            Some(_) => return None,
        };
        match (shape, offer) {
            ("Table", Offer::Object | Offer::List) => Some(Shape::Table {
                v1,
                include: IncludeObject::Metadata,
            }),
            // Written in v1 only.
            ("PartialObjectMetadata", Offer::Object)
            | ("PartialObjectMetadataList", Offer::List)
                if v1 =>
            {
                Some(Shape::Metadata)
            }
            _ => None,
        }
    }
}

/// Chooses the answer's form: the most wanted clause of Accept that can be met.
///
/// # Errors
/// 406 when no clause can be met.
pub(super) fn negotiate(headers: &HeaderMap, offer: Offer) -> Result<Negotiated, Status> {
    let accept = accept(headers);
    if takes_anything(&accept) {
        return Ok(Negotiated {
            media_type: MediaType::Json,
            shape: Shape::Object,
        });
    }
    let met = clauses(&accept).iter().find_map(|clause| {
        let (media_type, shape) = (clause.media_type()?, clause.shape(offer)?);
        Some(Negotiated { media_type, shape })
    });
    met.ok_or_else(|| Status::not_acceptable(&ACCEPTED))
}

/// The serialization of an error: the most wanted plain type of Accept, else JSON.
pub(super) fn error_media_type(headers: &HeaderMap) -> MediaType {
    let accept = accept(headers);
    let known = clauses(&accept).iter().find_map(Clause::media_type);
    known.unwrap_or(MediaType::Json)
}

/// Whether Accept asks for a discovery document of this shape, version for version in its order; the version's index.
pub(super) fn accepted_discovery(headers: &HeaderMap, versions: &[&str]) -> Option<Option<usize>> {
    let accept = accept(headers);
    if takes_anything(&accept) {
        return Some(None);
    }
    clauses(&accept).iter().find_map(|clause| {
        clause
            .media_type()
            .filter(|kind| *kind == MediaType::Json)?;
        match (clause.parameter("as"), clause.parameter("g")) {
            (None, _) => Some(None),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io")) => {
                let wanted = clause.parameter("v").unwrap_or_default();
                let index = versions.iter().position(|version| *version == wanted)?;
                Some(Some(index))
            }
            (Some(_), _) => None,
        }
    })
}

/// Refuses a client that takes no JSON, of whatever shape, for documents that are written in nothing else.
///
/// # Errors
/// 406.
pub(super) fn takes_json(headers: &HeaderMap) -> Result<(), Status> {
    let accept = accept(headers);
    let json = |clause: &Clause<'_>| clause.media_type() == Some(MediaType::Json);
    match takes_anything(&accept) || clauses(&accept).iter().any(json) {
        true => Ok(()),
        false => Err(Status::not_acceptable(&["application/json"])),
    }
}

/// Whether nothing at all is asked for.
fn takes_anything(accept: &str) -> bool {
    accept.split(',').all(|clause| clause.trim().is_empty())
}

fn accept(headers: &HeaderMap) -> String {
    let values = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut accept = values.collect::<Vec<_>>().join(",");
    if accept.len() > MAX_ACCEPT {
        let end = accept[..MAX_ACCEPT].rfind(',').unwrap_or(0);
        accept.truncate(end);
    }
    accept
}

/// The type of a request's body, without its parameters; empty when there is none.
pub(super) fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.map_or("", |value| value.to_str().unwrap_or("?"));
    value.split(';').next().unwrap_or_default().trim()
}

/// Whether the body is a configuration to apply.
pub(super) fn is_apply(headers: &HeaderMap) -> bool {
    content_type(headers) == PatchType::Apply.media_type()
}

/// The serialization of a request's body: JSON unless its Content-Type says otherwise.
///
/// # Errors
/// 415 for a type that is not read.
pub(super) fn body_type(headers: &HeaderMap) -> Result<MediaType, Status> {
    match content_type(headers).to_ascii_lowercase().as_str() {
        "" | "application/json" => Ok(MediaType::Json),
        "application/yaml" => Ok(MediaType::Yaml),
        _ => Err(Status::unsupported_media_type(&ACCEPTED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(accept: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(header::ACCEPT, accept.parse().unwrap());
        }
        headers
    }

    #[track_caller]
    fn check(accept: &str, offer: Offer, expected: &str) {
        let found = match negotiate(&headers(accept), offer) {
            Ok(Negotiated { media_type, shape }) => format!("{media_type:?} {shape:?}"),
            Err(status) => status.code().as_u16().to_string(),
        };
        assert_eq!(found, expected, "{accept}");
    }

    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

    #[test]
    fn json_is_what_anything_means() {
        for anything in [
            "",
            "*/*",
            "application/*",
            "application/json",
            "application/json; charset=utf-8",
        ] {
            check(anything, Offer::List, "Json Object");
        }
        check("application/yaml", Offer::List, "Yaml Object");
    }

    #[test]
    fn clauses_go_by_quality_then_order() {
        check(
            "application/vnd.kubernetes.protobuf,application/json",
            Offer::List,
            "Json Object",
        );
        check(
            "application/json;q=0.5,application/yaml",
            Offer::List,
            "Yaml Object",
        );
        check(
            "application/yaml;q=0,application/json",
            Offer::List,
            "Json Object",
        );
        check("*/*, application/yaml", Offer::List, "Yaml Object");
        check(
            "application/*, */*, application/yaml;q=0.9",
            Offer::List,
            "Json Object",
        );
        check("application/vnd.kubernetes.protobuf", Offer::List, "406");
        check("application/cbor", Offer::List, "406");
        check("text/html", Offer::Plain, "406");
    }

    #[test]
    fn an_error_is_in_the_most_wanted_plain_type() {
        let check = |accept: &str, expected| {
            assert_eq!(error_media_type(&headers(accept)), expected, "{accept}");
        };
        check("", MediaType::Json);
        check("text/html", MediaType::Json);
        check(TABLE, MediaType::Json);
        check("*/*, application/yaml", MediaType::Yaml);
        check("application/json;q=0.1,application/yaml", MediaType::Yaml);
        check("application/yaml;q=0,application/json", MediaType::Json);
    }

    #[test]
    fn tables_and_metadata_are_shapes_of_reads() {
        check(
            TABLE,
            Offer::List,
            "Json Table { v1: true, include: Metadata }",
        );
        let kubectl =
            format!("{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json");
        check(
            &kubectl,
            Offer::Object,
            "Json Table { v1: true, include: Metadata }",
        );
        check(&kubectl, Offer::Plain, "Json Object");
        check(TABLE, Offer::Plain, "406");
        check(
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            Offer::Object,
            "Json Metadata",
        );
        check(
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            Offer::List,
            "406",
        );
        check(
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Offer::List,
            "Json Metadata",
        );
        check(
            "application/json;as=Table;v=v7;g=meta.k8s.io",
            Offer::List,
            "406",
        );
        check("application/json;as=Nothing", Offer::List, "406");
    }

    #[test]
    fn discovery_asks_for_its_own_shapes() {
        let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let check = |accept: &str| accepted_discovery(&headers(accept), &["v2", "v2beta1"]);
        assert_eq!(check(aggregated), Some(Some(0)));
        assert_eq!(
            check(&format!(
                "{},{aggregated},application/json",
                aggregated.replace("v2", "v3")
            )),
            Some(Some(0))
        );
        assert_eq!(check("application/json"), Some(None));
        assert_eq!(check(""), Some(None));
        assert_eq!(check("application/json;as=Other"), None);
    }

    #[test]
    fn bodies_are_json_or_yaml() {
        let body = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
            body_type(&headers).map_err(|status| status.code().as_u16())
        };
        assert_eq!(body_type(&HeaderMap::new()).unwrap(), MediaType::Json);
        assert_eq!(body("application/json; charset=utf-8"), Ok(MediaType::Json));
        assert_eq!(body("application/yaml"), Ok(MediaType::Yaml));
        assert_eq!(body("application/cbor"), Err(415));
        assert_eq!(body("text/plain"), Err(415));
    }
}
