//! TLS, the registration, and kube-apiserver's proxy.

mod proxy;
mod registration;
mod tls;

use self::{
    proxy::{c_009, c_010, c_011, c_012, c_013, c_015, c_016},
    registration::{c_005, c_006, c_007, c_008, c_014},
    tls::{c_001, c_002, c_003, c_004},
};

items! {
    c_001 P0 "The serving certificate has the DNS name `SERVICE.NAMESPACE.svc`, and its CA is what the registration trusts.", ours;
    c_002 P0 "HTTP/2 and HTTP/1.1 are both offered, and whichever the client takes is served.", ours;
    c_003 P0 "The handshake asks for a client certificate and takes any or none: who it is is judged with the request.", ours;
    c_004 P1 "A new serving certificate and new CAs of clients and of the front proxy count without a restart.", ours;
    c_005 P0 "What the aggregator asks for its health check is answered from memory, whatever else cannot be reached.", ours;
    c_006 P0 "The shipped Service has the port of the registration and leads to the port that the Pod serves and is probed at.", ours;
    c_007 P0 "Each version has an APIService `VERSION.GROUP`, with v1beta1 above v1alpha1.", ours;
    c_008 P1 "The shipped APIServices do not let a CRD of the same name take them over.", ours;
    c_009 P0 "Nothing is answered with a redirect.", ours;
    c_010 P0 "Any Host is served, and `X-Forwarded-*` says nothing about who is asking.", ours;
    c_011 P0 "Through the aggregator a token's user is known without the token; path and query mean the same.", ours;
    c_012 P0 "A watch has no Content-Length, and its head is sent before the first event.";
    c_013 P0 "Calls to a node that never answers fail at their caller's timeout, far below the 60 s of kube-apiserver, and what may last longer has the name of a stream that it lets be.", ours;
    c_014 P0 "The resources of a version are told within 5 s, also when many ask.";
    c_015 P0 "What is refused instead of an upgrade is refused with 4xx or 5xx.", ours;
    c_016 P1 "A connection has 100 streams at once, and one that stalls holds up no other.", ours;
    c_017 P2 "Connections may be asked to end now and then, so that they spread over replicas.", left "built as --goaway-chance; it is a matter of chance, which tests/it/goaway.rs shows over many requests";
    c_018 P0 "Two replicas, a readiness gate and a disruption budget keep the registration available.", later "one server serves; followers come with a second replica";
}
