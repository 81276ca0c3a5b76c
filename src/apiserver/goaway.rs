//! Connections that end so that their clients spread over replicas.

use std::str::FromStr;

use rand::Rng;

/// How likely an answer over HTTP/2 is to be the last new one on its connection. Requests in flight there go on, watches among
/// them. The default is never: where there is one server, or no load balancer, it only costs handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GoawayChance(f64);

/// Why a text is no [`GoawayChance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a number from 0 to 0.02")]
pub struct NoChance;

impl GoawayChance {
    /// One in fifty, as of kube-apiserver: more would be a server that is mostly greeted.
    const MAX: f64 = 0.02;

    pub(super) fn strikes(self) -> bool {
        rand::rng().random_bool(self.0)
    }
}

impl FromStr for GoawayChance {
    type Err = NoChance;

    fn from_str(text: &str) -> Result<Self, NoChance> {
        let chance = text.parse().ok();
        let chance = chance.filter(|chance| (0.0..=Self::MAX).contains(chance));
        chance.map(Self).ok_or(NoChance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chance_is_small() {
        for chance in ["0", "0.001", "0.02", "-0"] {
            assert!(chance.parse::<GoawayChance>().is_ok(), "{chance}");
        }
        for none in ["", "0.021", "-0.001", "1", "NaN", "inf", "often"] {
            assert_eq!(none.parse::<GoawayChance>(), Err(NoChance), "{none}");
        }
        assert!(!GoawayChance::default().strikes());
    }
}
