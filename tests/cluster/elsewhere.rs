//! What went wrong for users of other servers and sandbox products of this kind, each fault as a test that shows that it is
//! not here.
//!
//! A comment names the public report that a test comes from, as `owner/repository#number`. Reports that an older test covers
//! are named there instead.

mod certificate;
mod claims;
mod crowds;
mod deletes;
mod fleet;
mod forms;
mod redirects;
mod restarts;
mod waits;
mod watches;
