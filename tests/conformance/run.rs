//! How the check of an item is run.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt as _;

use super::{
    item::{Item, Standing},
    subject::Subject,
};

/// Who is asked instead of the product: `crd` for a custom resource of the same schema. See `hack/conformance`.
const AGAINST: &str = "CONFORMANCE_AGAINST";
/// A check that still waits for a stub after this time does not pass.
const STUB_PATIENCE: Duration = Duration::from_secs(10);

/// The item holds for the product, or for whom the environment names.
pub(super) async fn holds(check: impl AsyncFnOnce(&Subject), items: &[Item], function: &str) {
    let subject = match std::env::var(AGAINST).as_deref() {
        Err(_) => Subject::product().await,
        Ok("crd") => {
            let item = items.iter().find(|item| item.function == function);
            let compared = item.is_some_and(|item| item.standing == Standing::Compared);
            assert!(compared, "not asked of another resource");
            Subject::custom_resource().await
        }
        Ok(other) => panic!("{AGAINST} is `crd` or not set, and not {other:?}"),
    };
    check(&subject).await;
}

/// The check does not pass on a server that answers `200 {}` to everything.
///
/// What sets a check up succeeds there, so that it is the check's own demands that fail.
pub(super) async fn fails_on_a_stub(check: impl AsyncFnOnce(&Subject)) {
    let subject = Subject::stub().await;
    let outcome = AssertUnwindSafe(check(&subject)).catch_unwind();
    let outcome = tokio::time::timeout(STUB_PATIENCE, outcome).await;
    assert!(
        !matches!(outcome, Ok(Ok(()))),
        "it passes on a server that answers 200 {{}} to everything"
    );
}
