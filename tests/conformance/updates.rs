//! UPDATE, PATCH and apply.

items! {}
