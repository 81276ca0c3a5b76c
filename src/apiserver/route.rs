//! What a request is about, read from its method, path and query, before anybody looks at a body.

use http::Method;
use percent_encoding::percent_decode_str;

use super::{Status, query::Query};
use crate::schema::Verb;

/// The subresource that is a part of the object.
pub(super) const STATUS: &str = "status";

/// The subresource that is how many of the object there are to be.
pub(super) const SCALE: &str = "scale";

/// A request for a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResourceRequest {
    pub(super) verb: Verb,
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl ResourceRequest {
    /// Whether the path goes as far as the verb needs: a create is for a collection, other verbs of one object for an object.
    pub(super) fn is_addressed(&self) -> bool {
        let on_object = matches!(
            self.verb,
            Verb::Get | Verb::Update | Verb::Patch | Verb::Delete
        );
        on_object != self.name.is_empty()
    }

    /// Whether it is about the scale of an object, if that has one.
    pub(super) fn is_of_scale(&self) -> bool {
        self.subresource == SCALE
    }

    /// Whether it is about the status of an object alone.
    pub(super) fn is_of_status(&self) -> bool {
        self.subresource == STATUS
    }
}

/// What a path means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// `/apis/G/V/…`.
    Resource(ResourceRequest),
    /// Anything else.
    Path(PathRequest),
}

/// A request for a path that is no resource's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathRequest {
    /// As the caller wrote it, once decoded: what authorization is asked about.
    pub(super) asked: String,
    /// Without empty parts: what is looked up, so that a slash too many finds the same.
    pub(super) served: String,
}

impl PathRequest {
    fn read(path: &str) -> Result<Self, Status> {
        let asked = decoded(path)?;
        let parts: Vec<&str> = asked.split('/').filter(|part| !part.is_empty()).collect();
        let served = format!("/{}", parts.join("/"));
        Ok(Self { asked, served })
    }
}

/// Reads a request's subject.
///
/// # Errors
/// 400 for a path that is not UTF-8 once decoded, 405 for a method that no resource knows.
pub(super) fn route(method: &Method, path: &str, query: &Query) -> Result<Route, Status> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let ["apis", group, version, rest @ ..] = parts.as_slice() else {
        return PathRequest::read(path).map(Route::Path);
    };
    let rest = match rest {
        [] => return PathRequest::read(path).map(Route::Path),
        ["namespaces", namespace, resource, more @ ..] => (*namespace, *resource, more),
        [resource, more @ ..] => ("", *resource, more),
    };
    let (namespace, resource, more) = rest;
    let (name, subresource) = match more {
        [] => ("", String::new()),
        [name] => (*name, String::new()),
        // What lies below a subresource is part of its name, as no subresource here takes a path.
        [name, subresource @ ..] => (*name, decoded(&subresource.join("/"))?),
    };
    let verb = verb_of(method, query, name, &subresource)?;
    Ok(Route::Resource(ResourceRequest {
        verb,
        group: decoded(group)?,
        version: decoded(version)?,
        resource: decoded(resource)?,
        subresource,
        namespace: decoded(namespace)?,
        name: decoded(name)?,
    }))
}

fn verb_of(method: &Method, query: &Query, name: &str, subresource: &str) -> Result<Verb, Status> {
    let collection = name.is_empty();
    Ok(match method.as_str() {
        "GET" | "HEAD" if collection && query.flag("watch") => Verb::Watch,
        "GET" | "HEAD" if collection => Verb::List,
        "GET" | "HEAD" => Verb::Get,
        "POST" => Verb::Create,
        "PUT" => Verb::Update,
        "PATCH" => Verb::Patch,
        "DELETE" if collection && subresource.is_empty() => Verb::DeleteCollection,
        "DELETE" => Verb::Delete,
        other => return Err(unknown_method(other)),
    })
}

fn unknown_method(method: &str) -> Status {
    let method: String = method.chars().take(32).collect();
    Status::method_unknown(&method)
}

fn decoded(part: &str) -> Result<String, Status> {
    let text = percent_decode_str(part).decode_utf8();
    text.map(std::borrow::Cow::into_owned)
        .map_err(|_| Status::bad_request("the path is not valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, target: &str, expected: &str) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let method: Method = method.parse().unwrap();
        let found = match route(&method, path, &Query::parse(query).unwrap()) {
            Ok(Route::Path(path)) if path.asked == path.served => path.served,
            Ok(Route::Path(path)) => format!("{} as {}", path.served, path.asked),
            Ok(Route::Resource(request)) => {
                let ResourceRequest {
                    verb,
                    group,
                    version,
                    resource,
                    subresource,
                    namespace,
                    name,
                } = request;
                format!(
                    "{} {group} {version} {namespace}|{resource}|{name}|{subresource}",
                    verb.as_str()
                )
            }
            Err(status) => status.code().to_string(),
        };
        assert_eq!(found, expected, "{method} {target}");
    }

    #[test]
    fn the_verb_follows_method_name_and_watch() {
        check(
            "GET",
            "/apis/g/v1/namespaces/ns/things",
            "list g v1 ns|things||",
        );
        check(
            "GET",
            "/apis/g/v1/namespaces/ns/things?watch",
            "watch g v1 ns|things||",
        );
        check("GET", "/apis/g/v1/things?watch=1", "watch g v1 |things||");
        check("GET", "/apis/g/v1/things?watch=0", "list g v1 |things||");
        check(
            "GET",
            "/apis/g/v1/things?watch=false",
            "list g v1 |things||",
        );
        check(
            "HEAD",
            "/apis/g/v1/namespaces/ns/things/a",
            "get g v1 ns|things|a|",
        );
        check(
            "POST",
            "/apis/g/v1/namespaces/ns/things/a/fork",
            "create g v1 ns|things|a|fork",
        );
        check(
            "DELETE",
            "/apis/g/v1/namespaces/ns/things",
            "deletecollection g v1 ns|things||",
        );
        check(
            "DELETE",
            "/apis/g/v1/namespaces/ns/things/a",
            "delete g v1 ns|things|a|",
        );
        check(
            "PUT",
            "/apis/g/v1/namespaces/ns/things/a/status",
            "update g v1 ns|things|a|status",
        );
        check(
            "BREW",
            "/apis/g/v1/namespaces/ns/things",
            "405 Method Not Allowed",
        );
    }

    #[test]
    fn slashes_and_escapes_do_not_change_the_subject() {
        check(
            "GET",
            "//apis/g//v1/namespaces/ns/things/",
            "list g v1 ns|things||",
        );
        check(
            "GET",
            "/apis/g/v1/namespaces/n%73/things/a%2Fb",
            "get g v1 ns|things|a/b|",
        );
        check(
            "GET",
            "/apis/g/v1/namespaces/ns/things/%ff",
            "400 Bad Request",
        );
    }

    #[test]
    fn other_paths_are_paths() {
        for (path, expected) in [
            ("/", "/"),
            ("/apis", "/apis"),
            ("/apis/g/v1/", "/apis/g/v1 as /apis/g/v1/"),
            ("//apis", "/apis as //apis"),
            ("/m%65trics", "/metrics"),
            ("/readyz/x", "/readyz/x"),
            ("/readyz/", "/readyz as /readyz/"),
            ("/%ff", "400 Bad Request"),
        ] {
            check("GET", path, expected);
        }
        check("GET", "/apis/g/v1/namespaces", "list g v1 |namespaces||");
    }
}
