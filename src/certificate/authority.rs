//! The CA that issues the serving certificate.

use std::time::{Duration, SystemTime};

use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{
    Error, Result,
    bundle::pem,
    lifetime::{Lifetime, timestamp},
};
use crate::serving::{CertificateAuthority, PemPair};

/// A CA with its key.
#[derive(Debug)]
pub(super) struct Authority {
    authority: CertificateAuthority,
    certificate: CertificateDer<'static>,
    pub(super) lifetime: Lifetime,
    bridge: Option<Bridge>,
}

/// The CA's certificate by the CA before it. Who has a copy of that one, and has not heard of its successor, trusts what the
/// successor issues by way of this.
#[derive(Debug)]
struct Bridge {
    certificate: CertificateDer<'static>,
    lifetime: Lifetime,
}

/// A serving certificate.
#[derive(Debug)]
pub(super) struct Issued {
    pub(super) pair: PemPair,
    pub(super) lifetime: Lifetime,
}

impl Authority {
    pub(super) fn new(now: SystemTime, duration: Duration) -> Result<Self> {
        let lifetime = Lifetime::new(now, duration);
        // A name of its own for each, so that people can tell two in a bundle apart.
        let name = format!("sandbox-apiserver-ca@{}", timestamp(now));
        let made = CertificateAuthority::valid(&name, lifetime.validity());
        Self::of(made.map_err(Error::Issue)?)
    }

    /// With a bridge from the CA before it, which is valid as long as that.
    pub(super) fn succeeding(mut self, before: &Self) -> Result<Self> {
        let mut lifetime = self.lifetime;
        lifetime.ends = before.lifetime.ends;
        let certificate = before
            .authority
            .cross_sign(&self.authority, lifetime.validity())
            .map_err(Error::Issue)?;
        self.bridge = blocks(&certificate).find_map(Bridge::read);
        Ok(self)
    }

    /// A CA that was kept. Whether the key belongs to the certificate shows in [`Self::issue`].
    pub(super) fn from_pem(kept: &PemPair) -> Result<Self> {
        let mut blocks = blocks(&kept.certificate);
        let certificate = blocks.next().ok_or(Error::Unusable("it is not PEM"))?;
        let pair = PemPair {
            certificate: pem(&certificate),
            private_key: kept.private_key.clone(),
        };
        let authority = CertificateAuthority::from_pem(&pair).map_err(Error::Issue)?;
        Ok(Self {
            bridge: blocks.find_map(Bridge::read),
            ..Self::of(authority)?
        })
    }

    fn of(authority: CertificateAuthority) -> Result<Self> {
        let certificate = blocks(authority.certificate()).next();
        let certificate = certificate.ok_or(Error::Unusable("it is not PEM"))?;
        let lifetime = life_of_authority(&certificate).ok_or(Error::Unusable("it is no CA"))?;
        Ok(Self {
            authority,
            certificate,
            lifetime,
            bridge: None,
        })
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// What is to be kept: the certificate, the bridge behind it, and the key.
    pub(super) fn pair(&self) -> PemPair {
        let mut pair = self.authority.pair();
        let bridge = self.bridge.iter().map(|bridge| pem(&bridge.certificate));
        pair.certificate.extend(bridge);
        pair
    }

    /// A certificate for a server with these names, which ends with the CA at the latest. It is verified as a client would, so
    /// that none is ever served that cannot be.
    ///
    /// # Errors
    /// [`Error::Name`] for a name that no client could ask for, whatever the CA.
    pub(super) fn issue(
        &self,
        names: &[&str],
        now: SystemTime,
        duration: Duration,
    ) -> Result<Issued> {
        let asked = subjects(names)?;
        let mut lifetime = Lifetime::new(now, duration);
        lifetime.ends = lifetime.ends.min(self.lifetime.ends);
        let mut pair = self
            .authority
            .server_certificate_valid(names, lifetime.validity())
            .map_err(Error::Issue)?;
        self.verify(&pair, &asked, now)?;
        let bridge = self.bridge.iter().filter(|it| !it.lifetime.is_over(now));
        pair.certificate
            .extend(bridge.map(|it| pem(&it.certificate)));
        Ok(Issued { pair, lifetime })
    }

    fn verify(&self, pair: &PemPair, names: &[Subject<'_>], now: SystemTime) -> Result<()> {
        let issued = blocks(&pair.certificate)
            .next()
            .ok_or(Error::Unusable("what it issues is not PEM"))?;
        let issued = EndEntityCert::try_from(&issued).map_err(Error::Untrusted)?;
        let anchor = anchor_from_trusted_cert(&self.certificate).map_err(Error::Untrusted)?;
        let now = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = UnixTime::since_unix_epoch(now.unwrap_or_default());
        let (server, algorithms) = (KeyUsage::server_auth(), ALL_VERIFICATION_ALGS);
        issued
            .verify_for_usage(algorithms, &[anchor], &[], now, server, None, None)
            .map_err(Error::Untrusted)?;
        for (name, asked) in names {
            issued
                .verify_is_valid_for_subject_name(asked)
                .map_err(|_| unfit(name))?;
        }
        Ok(())
    }
}

/// A name as it was given, and as a client asks for it.
type Subject<'a> = (&'a str, ServerName<'a>);

fn subjects<'a>(names: &[&'a str]) -> Result<Vec<Subject<'a>>> {
    let asked = names.iter().map(|name| {
        let asked = ServerName::try_from(*name).map_err(|_| unfit(name))?;
        Ok((*name, asked))
    });
    asked.collect()
}

fn unfit(name: &str) -> Error {
    Error::Name {
        name: name.to_owned(),
    }
}

impl Bridge {
    /// Anything but a CA's certificate is none: a client that cannot read it refuses the whole chain.
    fn read(certificate: CertificateDer<'static>) -> Option<Self> {
        let lifetime = life_of_authority(&certificate)?;
        Some(Self {
            certificate,
            lifetime,
        })
    }
}

/// The certificates in a text, up to the first that cannot be read.
fn blocks(text: &str) -> impl Iterator<Item = CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(text.as_bytes()).map_while(Result::ok)
}

/// The life of a certificate that may issue others; `None` when it may not.
pub(super) fn life_of_authority(certificate: &CertificateDer<'_>) -> Option<Lifetime> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    parsed.is_ca().then(|| Lifetime::of(&parsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const NAMES: [&str; 2] = ["x.y.svc", "127.0.0.1"];

    /// Whether who trusts `anchor` alone takes the chain at `now`.
    fn is_trusted(chain: &str, anchor: &Authority, now: SystemTime) -> bool {
        let chain: Vec<_> = blocks(chain).collect();
        let anchors = [anchor_from_trusted_cert(anchor.certificate()).unwrap()];
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let now = UnixTime::since_unix_epoch(now);
        let (server, algorithms) = (KeyUsage::server_auth(), ALL_VERIFICATION_ALGS);
        let leaf = EndEntityCert::try_from(&chain[0]).unwrap();
        leaf.verify_for_usage(algorithms, &anchors, &chain[1..], now, server, None, None)
            .is_ok()
    }

    #[test]
    fn who_knows_the_ca_before_trusts_its_successor_as_long_as_it_is_valid() {
        let now = SystemTime::now();
        let [before, stranger] = [(); 2].map(|()| Authority::new(now, DAY * 30).unwrap());
        let later = now + DAY * 20;
        let next = Authority::new(later, DAY * 30).unwrap();
        let alone = next.issue(&NAMES, later, DAY * 20).unwrap().pair;
        let next = next.succeeding(&before).unwrap();
        // Also after a restart.
        for next in [Authority::from_pem(&next.pair()).unwrap(), next] {
            let issued = next.issue(&NAMES, later, DAY * 20).unwrap().pair;
            for (chain, anchor, at, expected) in [
                (&alone, &before, later, false),
                (&alone, &next, later, true),
                (&issued, &next, later, true),
                (&issued, &before, later, true),
                (&issued, &before, now + DAY * 29, true),
                (&issued, &before, now + DAY * 31, false),
                (&issued, &next, now + DAY * 31, true),
                (&issued, &stranger, later, false),
            ] {
                assert_eq!(is_trusted(&chain.certificate, anchor, at), expected);
            }
        }
    }

    #[test]
    fn a_name_that_no_client_can_ask_for_is_refused_by_itself() {
        let now = SystemTime::now();
        let authority = Authority::new(now, DAY).unwrap();
        for name in ["x.example", "a_b.example", "192.0.2.1", "2001:db8::1"] {
            let issued = authority.issue(&["localhost", name], now, DAY);
            assert!(issued.is_ok(), "{name}: {issued:?}");
        }
        for bad in [
            "*.x.example",
            "x.example:443",
            "https://x.example",
            "[::1]",
            "h\u{f6}st",
            "x.example.",
            " x.example",
            "",
        ] {
            let refused = authority.issue(&["localhost", bad], now, DAY);
            assert!(
                matches!(&refused, Err(Error::Name { name }) if name == bad),
                "{bad}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_bridge_that_has_ended_or_cannot_be_read_is_not_shown() {
        let now = SystemTime::now();
        let before = Authority::new(now, DAY).unwrap();
        let next = Authority::new(now, DAY * 30).unwrap();
        let next = next.succeeding(&before).unwrap();
        let length = |authority: &Authority, at| {
            let issued = authority.issue(&NAMES, at, DAY).unwrap();
            blocks(&issued.pair.certificate).count()
        };
        assert_eq!([now, now + DAY * 2].map(|at| length(&next, at)), [2, 1]);
        let mut spoilt = next.pair();
        let end = spoilt.certificate.rfind("-----BEGIN").unwrap();
        spoilt.certificate.truncate(end);
        let junk = CertificateDer::from(vec![1, 2, 3]);
        spoilt.certificate.push_str(&pem(&junk));
        let back = Authority::from_pem(&spoilt).unwrap();
        assert_eq!(length(&back, now), 1);
    }
}
