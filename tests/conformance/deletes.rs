//! DELETE and deletecollection.

items! {}
