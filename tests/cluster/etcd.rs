//! What etcd really holds, asked without kube-apiserver in between.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::Deserialize;
use serde_json::json;

/// A key of etcd with its value: JSON for custom resources, protobuf for most built-in ones.
#[derive(Debug)]
pub(crate) struct KeyValue {
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
    /// Writes since it was made.
    pub(crate) version: u64,
}

impl KeyValue {
    /// Whether `text` occurs in the key or the value, whatever the value's encoding: both of them keep strings as they
    /// are.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.key.contains(text)
            || self
                .value
                .windows(text.len())
                .any(|window| window == text.as_bytes())
    }
}

/// Every key that starts with `prefix`, or every key there is without one, over etcd's JSON gateway.
pub(crate) async fn get_prefix(endpoint: &str, prefix: &str) -> Result<Vec<KeyValue>, Error> {
    let (key, end) = match prefix {
        // A zero byte is etcd's word for the first key, and for the end of all.
        "" => ("\0", vec![0]),
        prefix => (prefix, range_end(prefix)),
    };
    let question = json!({
        "key": BASE64_STANDARD.encode(key),
        "range_end": BASE64_STANDARD.encode(end),
    });
    let request = http::Request::post(format!("{endpoint}/v3/kv/range"))
        .body(Full::new(Bytes::from(question.to_string())))?;
    let client: Client<HttpConnector, _> = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    if !status.is_success() {
        return Err(format!("etcd answered {status}: {}", String::from_utf8_lossy(&body)).into());
    }
    let range: Range = serde_json::from_slice(&body)?;
    range.kvs.into_iter().map(Kv::decode).collect()
}

/// How often each key was written since it was made, and how many writes etcd counts in all.
#[derive(Debug)]
pub(crate) struct Writes {
    versions: BTreeMap<String, u64>,
    puts: u64,
}

impl Writes {
    pub(crate) async fn read(endpoint: &str) -> Result<Self, Error> {
        // Keys first: what comes in between is counted, and nothing that is counted is missed.
        let everything = get_prefix(endpoint, "").await?;
        let versions = everything.into_iter().map(|kv| (kv.key, kv.version));
        let metrics = get(&format!("{endpoint}/metrics")).await?;
        let metrics = String::from_utf8(metrics.to_vec())?;
        let mut lines = metrics.lines();
        let puts = lines.find_map(|line| line.strip_prefix("etcd_mvcc_put_total "));
        Ok(Self {
            versions: versions.collect(),
            puts: puts.ok_or("etcd does not count its puts")?.parse::<f64>()? as u64,
        })
    }

    /// Writes since `earlier`, by etcd's own count.
    pub(crate) fn puts_since(&self, earlier: &Self) -> u64 {
        self.puts - earlier.puts
    }

    /// The keys that were written since `earlier`, and how often.
    pub(crate) fn since(&self, earlier: &Self) -> BTreeMap<&str, u64> {
        let written = self.versions.iter().filter_map(|(key, version)| {
            let before = earlier.versions.get(key).copied();
            // A key that was deleted and made anew counts from one.
            let count = version.checked_sub(before.unwrap_or(0)).unwrap_or(*version);
            (count > 0).then_some((key.as_str(), count))
        });
        written.collect()
    }
}

async fn get(url: &str) -> Result<Bytes, Error> {
    let client: Client<HttpConnector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let response = client.get(url.parse()?).await?;
    Ok(response.into_body().collect().await?.to_bytes())
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The answer of `/v3/kv/range`. Keys and values are base64; an empty range has no `kvs`, an empty value no `value`.
#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<Kv>,
}

#[derive(Deserialize)]
struct Kv {
    key: String,
    #[serde(default)]
    value: String,
    /// A number in a string, as its gateway writes 64 bits.
    version: String,
}

impl Kv {
    fn decode(self) -> Result<KeyValue, Error> {
        Ok(KeyValue {
            key: String::from_utf8(BASE64_STANDARD.decode(self.key)?)?,
            value: BASE64_STANDARD.decode(self.value)?,
            version: self.version.parse()?,
        })
    }
}

/// The first key after all keys that start with `prefix`: the prefix with its last byte one higher.
///
/// Enough for the prefixes asked for here, which are ASCII.
fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
