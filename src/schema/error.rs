//! Why a schema cannot be built or a body cannot be read.

/// Result of this room.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a schema cannot be built or a body cannot be read.
///
/// The first four are mistakes in a Rust type, found when the server starts; [`Error::Json`] and [`Error::Yaml`] are the
/// client's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A keyword or a combination that a structural schema cannot express.
    #[error("schemas of this API cannot say {0}")]
    Unsupported(String),
    /// A reference to a type that is not among the definitions.
    #[error("unknown type {0}")]
    UnknownType(String),
    /// A type outside `io.k8s.` or inside a CRD that contains itself, so that it has no finite inlined form.
    #[error("type {0} contains itself")]
    Recursive(String),
    /// A `pattern` that is no regular expression.
    #[error("pattern of a string")]
    Pattern(#[from] regex::Error),
    /// A body that is not JSON, or nested deeper than 127 levels.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A body that is not YAML, or past the bounds on depth, aliases and size.
    #[error("{0}")]
    Yaml(#[from] Box<serde_saphyr::Error>),
    /// A value that has no YAML form.
    #[error("{0}")]
    WriteYaml(#[from] serde_saphyr::SerializeError),
}

impl From<serde_saphyr::Error> for Error {
    fn from(error: serde_saphyr::Error) -> Self {
        Self::Yaml(Box::new(error))
    }
}
