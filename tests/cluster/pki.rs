//! Certificates of the test control plane.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// A certificate authority made for one run.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its private key, both PEM.
pub(crate) struct Certificate {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
}

impl Authority {
    pub(crate) fn new(common_name: &str) -> Result<Self, rcgen::Error> {
        let mut params = params(common_name, &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        CertifiedIssuer::self_signed(params, KeyPair::generate()?).map(Self)
    }

    /// A certificate for a server that is reached as any of `names`: DNS names or IP addresses.
    pub(crate) fn serving(&self, names: &[&str]) -> Result<Certificate, rcgen::Error> {
        let mut params = params(names[0], names)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A certificate that kube-apiserver takes for `user`, a member of `group` beside `system:authenticated`.
    ///
    /// One group, because rcgen keeps one value for an attribute of a distinguished name.
    pub(crate) fn client(
        &self,
        user: &str,
        group: Option<&str>,
    ) -> Result<Certificate, rcgen::Error> {
        let mut params = params(user, &[])?;
        if let Some(group) = group {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// As [`Self::client`], for a member of two groups: rcgen takes the second for another attribute of the name.
    pub(crate) fn client_of_two(
        &self,
        user: &str,
        groups: [&str; 2],
    ) -> Result<Certificate, rcgen::Error> {
        let mut params = params(user, &[])?;
        let other = DnType::CustomDnType(vec![2, 5, 4, 10]);
        for (attribute, group) in [DnType::OrganizationName, other].into_iter().zip(groups) {
            params.distinguished_name.push(attribute, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn der(&self) -> Vec<u8> {
        self.0.der().to_vec()
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Certificate, rcgen::Error> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok(Certificate {
            certificate_pem: params.signed_by(&key, &self.0)?.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

fn params(common_name: &str, names: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names)?;
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    Ok(params)
}
