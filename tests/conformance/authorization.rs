//! What the caller may do.

items! {}
