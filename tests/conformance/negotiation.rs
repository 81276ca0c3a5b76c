//! Which form an answer has.

items! {}
