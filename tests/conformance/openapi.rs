//! The schemas, and what kubectl makes of them.

items! {}
