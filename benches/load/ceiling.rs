//! The ceiling: bytes that the real server encoded, sent by one that does nothing else, so that what is left between the two is
//! the server's own.

use std::{collections::HashMap, fs, path::Path};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;

use crate::{
    bare::{self, Bare},
    reads::Samples,
};

/// Answers by the last segment of their paths. In the directory each is a file.
type Answers = HashMap<String, Bytes>;

pub(crate) async fn start(samples: &Samples) -> anyhow::Result<Bare> {
    let named = samples.named().into_iter();
    Bare::start(
        "ceiling",
        &["localhost"],
        named.map(|(name, bytes)| (name, &bytes[..])),
    )
    .await
}

/// Is the ceiling.
pub(crate) fn serve(directory: &Path) -> anyhow::Result<()> {
    let answers = answers(directory)?;
    bare::serve(directory, async || {
        Ok(bare::task(move |request| {
            std::future::ready(answer(&answers, request.uri().path()))
        }))
    })
}

fn answers(directory: &Path) -> anyhow::Result<HashMap<String, Bytes>> {
    let mut answers = HashMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        answers.insert(name, fs::read(entry.path())?.into());
    }
    Ok(answers)
}

fn answer(answers: &Answers, path: &str) -> Response<Full<Bytes>> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let found = answers.get(name).cloned();
    let mut response = Response::new(Full::new(found.clone().unwrap_or_default()));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    if found.is_none() {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}
