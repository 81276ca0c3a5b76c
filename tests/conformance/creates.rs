//! CREATE.

items! {}
