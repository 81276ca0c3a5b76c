//! What Kubernetes' own controllers rely on.

items! {}
