//! Limits, errors, and the life of the process.

items! {}
