//! What is shown to agents.

use std::path::PathBuf;

use http::HeaderValue;

use super::{Error, Result};
use crate::api::Token;

/// A bearer token of the audience `sandbox-agent`, which no other server takes.
#[derive(Clone, Debug)]
pub enum Credential {
    /// This one.
    Fixed(Token),
    /// The trimmed content of a file, read for every request: the kubelet replaces it before it runs out.
    File(PathBuf),
}

impl Credential {
    pub(super) async fn header(&self) -> Result<HeaderValue> {
        let unusable = |reason: String| Error::NoToken { reason };
        let token = match self {
            Self::Fixed(token) => token.clone(),
            Self::File(path) => tokio::fs::read_to_string(path)
                .await
                .map_err(|error| unusable(format!("{}: {error}", path.display())))?
                .trim()
                .to_owned()
                .into(),
        };
        if token.expose().is_empty() {
            return Err(unusable("it is empty".to_owned()));
        }
        let mut header = HeaderValue::try_from(format!("Bearer {}", token.expose()))
            .map_err(|_| unusable("it has characters that no header may have".to_owned()))?;
        header.set_sensitive(true);
        Ok(header)
    }
}
