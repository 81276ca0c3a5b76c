//! What a request carries beside its subject: who asks, how, and what is to be told in passing.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    admission::{Counted, Exceeded, QuotaReservation, Quotas, Wanted},
    auth::UserInfo,
    store::{Key, Store, Value},
};

/// Longest text of all warnings of an answer; beyond it each is cut to [`MAX_WARNING`].
const MAX_WARNINGS: usize = 4_096;
const MAX_WARNING: usize = 256;
/// Texts kept of one request: a body with a fault in every line must not cost the square of its lines.
const MAX_TOLD: usize = 100;

/// A request, to a resource's hooks.
#[derive(Debug)]
pub struct Context {
    /// Who asks.
    pub user: Arc<UserInfo>,
    /// The request's audit id.
    pub audit_id: String,
    /// Who makes the change, for `managedFields`: the query's `fieldManager`, else the client's name.
    pub field_manager: String,
    quotas: Quotas,
    // Held to push one text; never over an await.
    warnings: Mutex<Vec<String>>,
}

impl Context {
    /// A request without warnings yet.
    pub fn new(
        user: Arc<UserInfo>,
        audit_id: String,
        field_manager: String,
        quotas: Quotas,
    ) -> Self {
        Self {
            user,
            audit_id,
            field_manager,
            quotas,
            warnings: Mutex::default(),
        }
    }

    /// Tells the client something beside the answer. The same text is told once.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock();
        if warnings.len() < MAX_TOLD && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// The right to make the object of that key, or copies of it, as far as the quotas of its namespace go.
    ///
    /// The machinery has asked already for an object to create; this is for what a subresource makes.
    ///
    /// # Errors
    /// [`Exceeded`]: it is to be refused with [`Status::over_quota`](super::Status::over_quota).
    pub fn admit<V: Value>(
        &self,
        counted: Counted<'_>,
        key: &Key,
        wanted: Wanted,
        store: &Store<V>,
    ) -> Result<QuotaReservation, Exceeded> {
        self.quotas.admit(counted, key, wanted, store)
    }

    /// The values of the answer's `Warning` headers.
    pub(super) fn warning_headers(&self) -> Vec<String> {
        let warnings = self.warnings.lock();
        let total: usize = warnings.iter().map(String::len).sum();
        let mut left = MAX_WARNINGS;
        let cut = |text: &str| match total > MAX_WARNINGS {
            true => text.chars().take(MAX_WARNING).collect(),
            false => text.to_owned(),
        };
        warnings
            .iter()
            .map(|text| cut(text))
            .take_while(|text| {
                let fits = text.len() <= left;
                left = left.saturating_sub(text.len());
                fits
            })
            .map(|text| format!("299 - {}", quoted(&text)))
            .collect()
    }
}

/// As an HTTP quoted string, without what a header value must not hold.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push(' '),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_context() -> Context {
        let user = Arc::new(UserInfo::default());
        Context::new(user, String::new(), String::new(), Quotas::none())
    }

    #[test]
    fn warnings_are_quoted_and_told_once() {
        let context = mk_context();
        context.warn("unknown field \"spec.x\"");
        context.warn("unknown field \"spec.x\"");
        context.warn("a\nb");
        assert_eq!(
            context.warning_headers(),
            [r#"299 - "unknown field \"spec.x\"""#, r#"299 - "a b""#]
        );
    }

    #[test]
    fn a_flood_of_warnings_is_cut() {
        let context = mk_context();
        for index in 0..100 {
            context.warn(format!("{index}{}", "x".repeat(500)));
        }
        let headers = context.warning_headers();
        assert_eq!(headers.len(), 16);
        assert!(headers.iter().all(|header| header.len() < 300));
    }
}
