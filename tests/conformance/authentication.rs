//! Who the caller is.

items! {}
