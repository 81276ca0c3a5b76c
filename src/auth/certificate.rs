//! Client certificates: whether a CA vouches for one, and whom it names.

use std::{fmt::Write, ops::Range};

use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime, pem::PemObject};
use sha2::{Digest, Sha256};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate};

use super::UserInfo;

/// The extra key that tells which certificate a request came with.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Why a certificate identifies nobody.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the certificate cannot be read")]
    Unreadable,
    #[error("no CA that is trusted for this vouches for the certificate")]
    Untrusted(#[source] webpki::Error),
    #[error("the certificate's common name {0:?} is not among the allowed names")]
    NameNotAllowed(String),
}

/// CA certificates that are trusted for one purpose. An empty bundle trusts nobody.
#[derive(Debug, Default)]
pub(super) struct CaBundle {
    authorities: Vec<Authority>,
}

/// A CA with its dates, which webpki does not look at: to webpki an anchor is trusted for ever.
#[derive(Debug)]
struct Authority {
    anchor: TrustAnchor<'static>,
    validity: Range<u64>,
}

/// Whom a certificate names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) common_name: String,
    organizations: Vec<String>,
}

impl CaBundle {
    /// The CAs in `pem`, and how many certificates in it could not be used.
    pub(super) fn parse(pem: &str) -> (Self, usize) {
        let (mut authorities, mut n_unusable) = (Vec::new(), 0);
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            match certificate.ok().as_ref().and_then(Authority::parse) {
                Some(authority) => authorities.push(authority),
                None => n_unusable += 1,
            }
        }
        (Self { authorities }, n_unusable)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.authorities.is_empty()
    }

    /// Whether a CA that is valid at `now` vouches for the first certificate of `chain`, by way of the others, as a client.
    pub(super) fn vouch(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Refusal> {
        let (client, intermediates) = chain.split_first().ok_or(Refusal::Unreadable)?;
        let anchors: Vec<_> = self
            .authorities
            .iter()
            .filter(|authority| authority.validity.contains(&now.as_secs()))
            .map(|authority| authority.anchor.clone())
            .collect();
        EndEntityCert::try_from(client)
            .and_then(|client| {
                client
                    .verify_for_usage(
                        ALL_VERIFICATION_ALGS,
                        &anchors,
                        intermediates,
                        now,
                        KeyUsage::client_auth(),
                        None,
                        None,
                    )
                    .map(drop)
            })
            .map_err(Refusal::Untrusted)
    }

    /// The seconds at which a CA starts or ends to be valid.
    pub(super) fn dates(&self) -> impl Iterator<Item = u64> {
        self.authorities
            .iter()
            .flat_map(|authority| [authority.validity.start, authority.validity.end])
    }
}

impl Authority {
    fn parse(certificate: &CertificateDer<'_>) -> Option<Self> {
        Some(Self {
            anchor: anchor_from_trusted_cert(certificate).ok()?.to_owned(),
            validity: validity(certificate)?,
        })
    }
}

impl Subject {
    /// The subject of a certificate. As in Go, the last common name counts.
    pub(super) fn parse(certificate: &CertificateDer<'_>) -> Result<Self, Refusal> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|_| Refusal::Unreadable)?;
        let text = |value: &AttributeTypeAndValue<'_>| {
            value
                .as_str()
                .map(str::to_owned)
                .map_err(|_| Refusal::Unreadable)
        };
        let common_name = parsed.subject().iter_common_name().last();
        Ok(Self {
            common_name: common_name.map(text).transpose()?.unwrap_or_default(),
            organizations: parsed
                .subject()
                .iter_organization()
                .map(text)
                .collect::<Result<_, _>>()?,
        })
    }

    /// The user this subject stands for: the common name is the name, the organizations are the groups.
    pub(super) fn into_user(self, certificate: &CertificateDer<'_>) -> UserInfo {
        let mut id = String::from("X509SHA256=");
        for byte in Sha256::digest(certificate) {
            write!(id, "{byte:02x}").expect("writing to a String does not fail");
        }
        UserInfo {
            name: self.common_name,
            uid: None,
            groups: self.organizations,
            extra: [(CREDENTIAL_ID.to_owned(), vec![id])].into(),
        }
    }
}

/// From when until before when a certificate is valid, in seconds since 1970.
pub(super) fn validity(certificate: &CertificateDer<'_>) -> Option<Range<u64>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let seconds = |timestamp: i64| u64::try_from(timestamp).unwrap_or(0);
    let validity = parsed.validity();
    // The last second is a valid one.
    Some(
        seconds(validity.not_before.timestamp())
            ..seconds(validity.not_after.timestamp()).saturating_add(1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `O=dev, CN=first, O=ops, CN=ann`.
    const TWO_OF_EACH: &str = "\
-----BEGIN CERTIFICATE-----
MIIByzCCAXGgAwIBAgIUfrF/VG6xkGln8tYcVyeBhiqqqH4wCgYIKoZIzj0EAwIw
OjEMMAoGA1UECgwDZGV2MQ4wDAYDVQQDDAVmaXJzdDEMMAoGA1UECgwDb3BzMQww
CgYDVQQDDANhbm4wIBcNMjYxMTI5MjM0OTAyWhgPMjEyNjExMDUyMzQ5MDJaMDox
DDAKBgNVBAoMA2RldjEOMAwGA1UEAwwFZmlyc3QxDDAKBgNVBAoMA29wczEMMAoG
A1UEAwwDYW5uMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAERqlFiG9M0eCHVty9
NKgw+d8Rv70DNoEgg4CvRMAtPPOBLLKz9Qb3pqpuEzEiwyBg3C2Msfe34R8bnTQ2
fF2w46NTMFEwHQYDVR0OBBYEFBUvCtelD5TPdDFpo+syQmykPh3uMB8GA1UdIwQY
MBaAFBUvCtelD5TPdDFpo+syQmykPh3uMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZI
zj0EAwIDSAAwRQIhANfMSp/jKO+wA1EfyHiX3m+DsIvXpScRSWwWsPNfSy49AiBp
4nbbEpJJJjnFeGCQOmoXbyThtioGG8E1wGBP8Kou+A==
-----END CERTIFICATE-----";

    #[test]
    fn the_last_common_name_is_the_user_and_every_organization_a_group() {
        let certificate = CertificateDer::from_pem_slice(TWO_OF_EACH.as_bytes()).unwrap();
        let user = Subject::parse(&certificate)
            .unwrap()
            .into_user(&certificate);
        assert_eq!(user.name, "ann");
        assert_eq!(user.groups, ["dev", "ops"]);
        let id = &user.extra[CREDENTIAL_ID][0];
        assert_eq!(
            id,
            "X509SHA256=fe78f344aca33b9eb67a230c0814c6c577ca6e88e1d25a3e71f29d3f06acada6"
        );
    }
}
