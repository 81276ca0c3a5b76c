//! The signals that end the process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code after a second signal.
const EXIT_IMPATIENT: i32 = 1;

/// A token that SIGTERM or SIGINT cancels. A second signal ends the process at once, for who does not want to wait for the
/// drain.
///
/// # Errors
/// When the signal handlers cannot be installed.
///
/// # Panics
/// Outside a tokio runtime.
pub fn shutdown_on_signal() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    // Lives as long as the process: there is nothing to stop it for.
    tokio::spawn(async move {
        let name = either(&mut terminate, &mut interrupt).await;
        tracing::info!(signal = name, "shutting down");
        cancelled.cancel();
        let name = either(&mut terminate, &mut interrupt).await;
        tracing::warn!(signal = name, "second signal: ending without a drain");
        std::process::exit(EXIT_IMPATIENT);
    });
    Ok(token)
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
