//! Where log lines go and what they look like.

use std::{
    io::{self, IsTerminal},
    str::FromStr,
};

use tracing_subscriber::{EnvFilter, util::SubscriberInitExt};

/// What is logged when no filter is given: everything of note, but for the HTTP client's line on each failed answer, which
/// the caller of that client logs once with its own context.
pub const DEFAULT_FILTER: &str = "info,kube_client::client::builder=off";

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The format's name is none we know.
    #[error("unknown log format {0:?}: use text or json")]
    UnknownFormat(String),
    /// The filter is no list of `target=level`.
    #[error("the log filter cannot be read")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// The process has a logger already.
    #[error("logging is set up already")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// The result of setting up the log.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl FromStr for LogFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(Error::UnknownFormat(text.to_owned())),
        }
    }
}

/// Sends the process's log to standard error. `filter` is a list such as `info,sandbox_apiserver::auth=debug`.
///
/// # Errors
/// [`Error::Filter`] for a filter that cannot be read; [`Error::Twice`] on a second call.
pub fn init_log(format: LogFormat, filter: &str) -> Result<()> {
    let filter = EnvFilter::try_new(filter).map_err(Error::Filter)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Colours are for people who look, not for files.
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => builder.finish().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
    }
    .map_err(Error::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_names() {
        assert_eq!("json".parse::<LogFormat>().unwrap(), LogFormat::Json);
        assert!("xml".parse::<LogFormat>().is_err());
    }

    #[test]
    fn a_bad_filter_is_an_error_and_not_silence() {
        let error = init_log(LogFormat::Text, "auth=loud").unwrap_err();
        assert!(matches!(error, Error::Filter(_)), "{error:?}");
        assert!(EnvFilter::try_new(DEFAULT_FILTER).is_ok());
    }
}
