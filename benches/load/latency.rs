//! Latencies, and what is said of them.

use std::time::Duration;

/// Latencies of one kind of request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn add(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    /// The smallest latency that `percent` of them do not exceed: one that was really measured, never a mean of two.
    ///
    /// # Panics
    /// Without any latency, of which nothing can be said.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        assert!(!self.0.is_empty(), "nothing was measured");
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted[rank - 1]
    }
}

impl Extend<Duration> for Latencies {
    fn extend<I: IntoIterator<Item = Duration>>(&mut self, latencies: I) {
        self.0.extend(latencies);
    }
}

impl FromIterator<Duration> for Latencies {
    fn from_iter<I: IntoIterator<Item = Duration>>(latencies: I) -> Self {
        Self(latencies.into_iter().collect())
    }
}
