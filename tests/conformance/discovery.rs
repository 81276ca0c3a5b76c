//! What the API says that it has.

items! {}
