//! TLS, the registration, and kube-apiserver's proxy.

items! {}
