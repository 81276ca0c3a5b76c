//! What is done to an answer on its way out: indented for people, compressed for the wire, left away for HEAD.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};

use super::{
    Body,
    body::{STREAMED_FROM, Transform},
    query::Query,
};

/// Programs that people read the answers of.
const PEOPLES_AGENTS: [&str; 3] = ["curl", "Wget", "Mozilla/5.0"];
const INDENT: &[u8] = b"  ";

/// How the client wants any answer to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    head_only: bool,
    gzip: bool,
    pretty: bool,
    /// The watch, if it is one, begins with a list.
    streams_list: bool,
}

impl Delivery {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let query = Query::parse(query).unwrap_or_default();
        Self {
            head_only: request.method() == Method::HEAD,
            gzip: accepts_gzip(request.headers()),
            pretty: is_for_people(&query, request.headers()),
            streams_list: query.flag("sendInitialEvents") && query.flag("allowWatchBookmarks"),
        }
    }

    /// The answer as it is sent.
    ///
    /// Documents under an entity tag are sent as they are written, so that a tag has one text. Watches are never indented, and
    /// compressed only when they begin with a list, as of kube-apiserver: others are few bytes at a time.
    pub(super) fn apply(self, answer: Response<Body>, is_watch: bool) -> Response<Body> {
        if self.head_only {
            return without_body(answer);
        }
        if is_watch {
            let compresses = self.gzip && self.streams_list && answer.body().length().is_none();
            return match compresses {
                true => compressed(answer, GzipEach),
                false => answer,
            };
        }
        let answer = match self.pretty && is_plain_json(answer.headers()) {
            true => answer.map(|body| body.transformed(Pretty::default())),
            false => answer,
        };
        match answer.body().length() {
            _ if is_opaque(answer.headers()) => answer,
            Some(length) if length <= STREAMED_FROM => answer,
            _ if self.gzip => compressed(answer, Gzip::new()),
            _ => varied(answer),
        }
    }
}

fn compressed(answer: Response<Body>, transform: impl Transform) -> Response<Body> {
    let mut answer = varied(answer);
    answer
        .headers_mut()
        .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    answer.map(|body| body.transformed(transform))
}

/// An answer that may be compressed, for caches.
fn varied(mut answer: Response<Body>) -> Response<Body> {
    answer
        .headers_mut()
        .append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    answer
}

fn without_body(mut answer: Response<Body>) -> Response<Body> {
    if let Some(length) = answer.body().length() {
        answer
            .headers_mut()
            .insert(header::CONTENT_LENGTH, length.into());
    }
    answer.map(|_| Body::empty())
}

/// Bytes of which nothing is known, which are sent as they are: most files that are worth it are compressed already.
fn is_opaque(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind == "application/octet-stream")
}

fn is_plain_json(headers: &HeaderMap) -> bool {
    let json = headers.get(header::CONTENT_TYPE);
    json.is_some_and(|kind| kind == "application/json") && !headers.contains_key(header::ETAG)
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let is_gzip = parts.next() == Some("gzip");
        let quality = parts.find_map(|part| part.strip_prefix("q="));
        is_gzip && quality.is_none_or(|quality| quality.parse().is_ok_and(|q: f32| q > 0.0))
    })
}

/// Whether `pretty` asks for it, else whether the client is a tool of people.
fn is_for_people(query: &Query, headers: &HeaderMap) -> bool {
    if let Some(pretty) = query.get("pretty").filter(|pretty| !pretty.is_empty()) {
        return matches!(pretty, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers
        .get(header::USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default();
    PEOPLES_AGENTS
        .iter()
        .any(|people| agent.starts_with(people))
}

/// Compression at the level that costs least: the network is near, the processor is shared.
struct Gzip(GzEncoder<Vec<u8>>);

impl Gzip {
    fn new() -> Self {
        Self(GzEncoder::new(Vec::new(), Compression::fast()))
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.0.get_mut())
    }
}

impl Transform for Gzip {
    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.0.write_all(bytes).expect("a vector takes any bytes");
        self.take()
    }

    fn finish(&mut self) -> Vec<u8> {
        self.0.try_finish().expect("a vector takes any bytes");
        self.take()
    }
}

/// Each chunk compressed by itself, so that none waits for the next and a watch on which nothing happens holds no state.
///
/// The data are flushed before their member ends: Go's reader gives what stands before a flush at once, and what stands at the
/// end of a member with the header of the next.
struct GzipEach;

impl Transform for GzipEach {
    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut member = GzEncoder::new(Vec::new(), Compression::fast());
        member
            .write_all(bytes)
            .and_then(|()| member.flush())
            .and_then(|()| member.finish())
            .expect("a vector takes any bytes")
    }

    fn finish(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// Indents JSON as it passes, so that a list need not be whole for it.
#[derive(Debug, Default)]
struct Pretty {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// An object or an array has begun and nothing of it has been seen: `{}` takes no lines of its own.
    opened: bool,
}

impl Pretty {
    fn step(&mut self, byte: u8, out: &mut Vec<u8>) {
        if self.in_string {
            out.push(byte);
            self.in_string = self.escaped || byte != b'"';
            self.escaped = byte == b'\\' && !self.escaped;
            return;
        }
        match byte {
            b' ' | b'\n' | b'\t' | b'\r' => return,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if !std::mem::take(&mut self.opened) {
                    self.new_line(out);
                }
            }
            b',' | b':' => {}
            _ if std::mem::take(&mut self.opened) => self.new_line(out),
            _ => {}
        }
        out.push(byte);
        match byte {
            b'{' | b'[' => {
                self.depth += 1;
                self.opened = true;
            }
            b',' => self.new_line(out),
            b':' => out.push(b' '),
            b'"' => self.in_string = true,
            _ => {}
        }
    }

    fn new_line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        (0..self.depth).for_each(|_| out.extend_from_slice(INDENT));
    }
}

impl Transform for Pretty {
    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 2);
        bytes.iter().for_each(|byte| self.step(*byte, &mut out));
        out
    }

    fn finish(&mut self) -> Vec<u8> {
        b"\n".to_vec()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn pretty(text: &str, chunk: usize) -> String {
        let mut transform = Pretty::default();
        let mut out: Vec<u8> = text
            .as_bytes()
            .chunks(chunk)
            .flat_map(|bytes| transform.push(bytes))
            .collect();
        out.extend(transform.finish());
        String::from_utf8(out).unwrap()
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            r#"[a"\\{}\[\],: ]{0,8}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(r#"[a"\\{}\[\],: ]{0,4}"#, inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_is_indented_as_serde_does_it_wherever_it_is_cut(value in any_json(), chunk in 1_usize..20) {
            let expected = serde_json::to_string_pretty(&value).unwrap() + "\n";
            prop_assert_eq!(pretty(&value.to_string(), chunk), expected.clone());
            prop_assert_eq!(pretty(&expected, chunk), expected);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            Pretty::default().push(&bytes);
        }
    }

    #[test]
    fn people_get_indented_answers_unless_they_refuse() {
        let check = |query: &str, agent: &str, expected: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, agent.parse().unwrap());
            let for_people = is_for_people(&Query::parse(query).unwrap(), &headers);
            assert_eq!(for_people, expected, "{query} {agent}");
        };
        check("", "curl/8.0", true);
        check("", "Mozilla/5.0 (X11)", true);
        check("", "kubectl/v1.37", false);
        check("pretty=true", "kubectl/v1.37", true);
        check("pretty=false", "curl/8.0", false);
        check("pretty=", "curl/8.0", true);
    }

    #[test]
    fn gzip_is_for_those_who_take_it() {
        let check = |accepted: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, accepted.parse().unwrap());
            accepts_gzip(&headers)
        };
        assert!(check("gzip") && check("deflate, gzip;q=0.5"));
        assert!(!check("identity") && !check("gzip;q=0") && !check(""));
    }
}
