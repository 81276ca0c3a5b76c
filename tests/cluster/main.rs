//! Cluster tests.
