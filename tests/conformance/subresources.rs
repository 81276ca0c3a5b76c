//! Subresources and streams.

items! {}
