//! How long to wait before the next try.

use std::time::Duration;

use rand::Rng;

/// The first pause at most, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(15)];

/// Pauses that double with each failure, jittered so that listeners cut together do not come back together.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// How long to wait after one more failure: half to all of 0.2 s, 0.4 s, … 15 s.
    pub fn pause(&mut self) -> Duration {
        let [first, longest] = PAUSES;
        let pause = first
            .saturating_mul(1 << self.failures.min(16))
            .min(longest);
        self.failures += 1;
        pause.mul_f64(rand::rng().random_range(0.5..1.0))
    }

    /// Notes a success: the next pause is a short one.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}
