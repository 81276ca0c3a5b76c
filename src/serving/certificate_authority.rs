//! Certificates made on the spot: the server's own, those of `dev` and of tests, the node agent's identity.

use std::{
    fmt,
    ops::Range,
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Error, Result};

/// How long a CA and the server certificates it issues are valid, where nobody says. Those of `dev` and of tests last as long
/// as their process. An agent keeps its own on disk for longer, which is no harm: its clients know it by its digest and look at
/// no date.
const LIFETIME: Duration = Duration::from_secs(365 * 86_400);

/// How far back validity starts, for clients whose clock is behind.
const CLOCK_SLACK: Duration = Duration::from_secs(3_600);

/// A certificate and its private key as PEM. The key never prints.
#[derive(Clone, PartialEq, Eq)]
pub struct PemPair {
    /// The certificate, followed by its intermediates.
    pub certificate: String,
    /// The private key.
    pub private_key: String,
}

/// A CA that lives in memory. ECDSA P-256 throughout.
pub struct CertificateAuthority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    /// A new CA called `common_name`, valid for a year.
    ///
    /// # Errors
    /// [`Error::Issue`] when the system has no random numbers.
    pub fn new(common_name: &str) -> Result<Self> {
        Self::valid(common_name, default_validity())
    }

    /// As [`Self::new`], valid at these times.
    ///
    /// # Errors
    /// [`Error::Issue`] when the system has no random numbers.
    pub fn valid(common_name: &str, validity: Range<SystemTime>) -> Result<Self> {
        let params = ca_params(common_name, validity);
        let key = KeyPair::generate().map_err(Error::Issue)?;
        let certificate = params.self_signed(&key).map_err(Error::Issue)?;
        Ok(Self {
            certificate: certificate.pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// A CA that was made before, from its [`Self::pair`]. Whether the two belong together shows in what it issues.
    ///
    /// # Errors
    /// [`Error::Issue`] when one of them cannot be read.
    pub fn from_pem(pair: &PemPair) -> Result<Self> {
        let key = KeyPair::from_pem(&pair.private_key).map_err(Error::Issue)?;
        let issuer = Issuer::from_ca_cert_pem(&pair.certificate, key).map_err(Error::Issue)?;
        Ok(Self {
            certificate: pair.certificate.clone(),
            issuer,
        })
    }

    /// The CA's certificate and its key, to be kept where nobody reads it.
    pub fn pair(&self) -> PemPair {
        PemPair {
            certificate: self.certificate.clone(),
            private_key: self.issuer.key().serialize_pem(),
        }
    }

    /// The CA's own certificate as PEM: what a client has to trust.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for a server with these DNS names and IP addresses, valid for a year.
    ///
    /// # Errors
    /// [`Error::Issue`] for a name that is not ASCII.
    pub fn server_certificate(&self, names: &[&str]) -> Result<PemPair> {
        self.server_certificate_valid(names, default_validity())
    }

    /// As [`Self::server_certificate`], valid at these times.
    ///
    /// # Errors
    /// [`Error::Issue`] for a name that is not ASCII.
    pub fn server_certificate_valid(
        &self,
        names: &[&str],
        validity: Range<SystemTime>,
    ) -> Result<PemPair> {
        let mut params = params(names.first().unwrap_or(&"server"), validity);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = names
            .iter()
            .map(|name| match name.parse() {
                Ok(address) => Ok(SanType::IpAddress(address)),
                Err(_) => Ok(SanType::DnsName((*name).try_into()?)),
            })
            .collect::<Result<_, rcgen::Error>>()
            .map_err(Error::Issue)?;
        self.issue(&params)
    }

    /// The certificate of `other` by this CA: shown together with what the other issues, it makes that trusted by whoever trusts
    /// this one.
    ///
    /// # Errors
    /// [`Error::Issue`] when the other has a name that was not given here.
    pub fn cross_sign(&self, other: &Self, validity: Range<SystemTime>) -> Result<String> {
        let name = common_name(&other.certificate);
        let name = name.ok_or(Error::Issue(rcgen::Error::CouldNotParseCertificate))?;
        let params = ca_params(&name, validity);
        let signed = params.signed_by(other.issuer.key(), &self.issuer);
        Ok(signed.map_err(Error::Issue)?.pem())
    }

    /// A certificate for a client: Kubernetes reads `common_name` as the user and `organization` as its group.
    ///
    /// # Errors
    /// [`Error::Issue`] when the system has no random numbers.
    pub fn client_certificate(
        &self,
        common_name: &str,
        organization: Option<&str>,
        validity: Range<SystemTime>,
    ) -> Result<PemPair> {
        let mut params = params(common_name, validity);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(organization) = organization {
            params
                .distinguished_name
                .push(DnType::OrganizationName, organization);
        }
        self.issue(&params)
    }

    fn issue(&self, params: &CertificateParams) -> Result<PemPair> {
        let key = KeyPair::generate().map_err(Error::Issue)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(Error::Issue)?;
        Ok(PemPair {
            certificate: certificate.pem(),
            private_key: key.serialize_pem(),
        })
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PemPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PemPair")
            .field("certificate", &self.certificate)
            .field("private_key", &"***")
            .finish()
    }
}

fn params(common_name: &str, validity: Range<SystemTime>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.not_before = validity.start.into();
    params.not_after = validity.end.into();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params
}

fn ca_params(common_name: &str, validity: Range<SystemTime>) -> CertificateParams {
    let mut params = params(common_name, validity);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(certificate: &str) -> Option<String> {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
    let (_, parsed) = X509Certificate::from_der(&certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

fn default_validity() -> Range<SystemTime> {
    let now = SystemTime::now();
    now - CLOCK_SLACK..now + LIFETIME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_keys_never_print() {
        let ca = CertificateAuthority::new("test").unwrap();
        let pair = ca.server_certificate(&["localhost", "127.0.0.1"]).unwrap();
        assert!(!format!("{pair:?} {ca:?}").contains("PRIVATE"));
        assert!(pair.private_key.contains("PRIVATE"));
    }
}
