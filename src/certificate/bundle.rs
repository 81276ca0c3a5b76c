//! The CAs that clients are to trust.

use std::time::SystemTime;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rustls_pki_types::{CertificateDer, pem::PemObject};

use super::authority::{Authority, life_of_authority};

/// Characters in a line of PEM.
const LINE: usize = 64;

/// Certificates of CAs, each once: the one that issues, then those whose certificates may still be in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bundle(Vec<CertificateDer<'static>>);

impl Bundle {
    /// The CA alone.
    pub(super) fn of(authority: &Authority) -> Self {
        Self(vec![authority.certificate().clone()])
    }

    /// What `pem` has of CAs that are valid at `now`. Everything else is left out: one block that cannot be read must not cost
    /// the trust in the others, and one that has ended vouches for nothing.
    pub(super) fn parse(pem: &[u8], now: SystemTime) -> Self {
        let blocks = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
        let found = Self::default().and(Self(blocks.collect()));
        found.valid_at(now)
    }

    /// Those that are CAs and have not ended.
    pub(super) fn valid_at(mut self, now: SystemTime) -> Self {
        self.0.retain(|certificate| {
            life_of_authority(certificate).is_some_and(|life| !life.is_over(now))
        });
        self
    }

    /// These, and those of `others` that are not among them.
    pub(super) fn and(mut self, others: Self) -> Self {
        for certificate in others.0 {
            if !self.0.contains(&certificate) {
                self.0.push(certificate);
            }
        }
        self
    }

    pub(super) fn to_pem(&self) -> String {
        self.0.iter().map(pem).collect()
    }
}

/// A certificate as PEM, the same text each time.
pub(super) fn pem(certificate: &CertificateDer<'_>) -> String {
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let text = BASE64_STANDARD.encode(certificate);
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::serving::CertificateAuthority;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn what_has_ended_what_is_no_ca_and_what_is_no_certificate_is_left_out() {
        let now = SystemTime::now();
        let [valid, ended] = [DAY * 3, DAY].map(|life| Authority::new(now, life).unwrap());
        let leaf = CertificateAuthority::new("x").unwrap();
        let leaf = leaf.server_certificate(&["x"]).unwrap();
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let (valid, ended) = (Bundle::of(&valid), Bundle::of(&ended));
        let text = [
            &ended.to_pem(),
            broken,
            "words",
            &leaf.certificate,
            &valid.to_pem(),
        ]
        .concat();
        assert_eq!(Bundle::parse(text.as_bytes(), now + DAY * 2), valid);
        assert_eq!(Bundle::parse(text.as_bytes(), now), ended.and(valid));
    }

    #[test]
    fn each_is_there_once_and_the_first_stays_first() {
        let now = SystemTime::now();
        let [old, new] = [DAY, DAY * 2].map(|life| Bundle::of(&Authority::new(now, life).unwrap()));
        let both = new.clone().and(old.clone());
        assert!(both.to_pem().starts_with(&new.to_pem()));
        assert_eq!(both.clone().and(old).and(new), both);
        assert_eq!(Bundle::parse(both.to_pem().as_bytes(), now), both);
    }
}
