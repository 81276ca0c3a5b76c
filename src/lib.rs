//! Placeholder map.
