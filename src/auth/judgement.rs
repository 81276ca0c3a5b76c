//! What a connection's certificate is worth, found out once and not with every request.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::serving::Connection;

use super::{
    UserInfo,
    certificate::{Refusal, Subject, validity},
    config_map::Trust,
};

/// The worth of a connection's certificate under one [`Trust`].
#[derive(Debug)]
pub(super) struct Judgement {
    /// Whether it may vouch for identity headers.
    pub(super) proxy: Standing<()>,
    /// Whom it identifies itself.
    pub(super) client: Standing<Arc<UserInfo>>,
    generation: u64,
    /// The second from which it may be worth something else, because a date has passed.
    until: u64,
}

/// The worth of a certificate for one purpose.
#[derive(Debug)]
pub(super) enum Standing<T> {
    /// There is no certificate, or nobody is trusted for this: it says nothing.
    Absent,
    /// It is a bad credential.
    Refused(Refusal),
    /// It is a good one.
    Trusted(T),
}

impl Judgement {
    /// The judgement on `connection`, made anew when the trust has changed or a date has passed.
    pub(super) fn on(connection: &Connection, trust: &Trust, now: UnixTime) -> Arc<Self> {
        let still_true = |judgement: &Arc<Self>| {
            judgement.generation == trust.generation && now.as_secs() < judgement.until
        };
        connection
            .recall::<Self>()
            .filter(still_true)
            .unwrap_or_else(|| {
                let judgement = Arc::new(Self::make(&connection.peer_certificates, trust, now));
                connection.remember(judgement.clone());
                judgement
            })
    }

    fn make(chain: &[CertificateDer<'_>], trust: &Trust, now: UnixTime) -> Self {
        Self {
            proxy: Self::proxy(chain, trust, now),
            client: Self::client(chain, trust, now),
            generation: trust.generation,
            until: next_date(chain, trust, now),
        }
    }

    fn proxy(chain: &[CertificateDer<'_>], trust: &Trust, now: UnixTime) -> Standing<()> {
        let (Some(certificate), Some(request_header)) = (chain.first(), &trust.request_header)
        else {
            return Standing::Absent;
        };
        let judged = request_header.ca.vouch(chain, now).and_then(|()| {
            let Subject { common_name, .. } = Subject::parse(certificate)?;
            match request_header.allows(&common_name) {
                true => Ok(()),
                false => Err(Refusal::NameNotAllowed(common_name)),
            }
        });
        judged.map_or_else(Standing::Refused, Standing::Trusted)
    }

    fn client(
        chain: &[CertificateDer<'_>],
        trust: &Trust,
        now: UnixTime,
    ) -> Standing<Arc<UserInfo>> {
        let (Some(certificate), Some(ca)) = (chain.first(), &trust.client_ca) else {
            return Standing::Absent;
        };
        match ca
            .vouch(chain, now)
            .and_then(|()| Subject::parse(certificate))
        {
            Err(refusal) => Standing::Refused(refusal),
            // A certificate without a common name identifies nobody, and is no bad credential either.
            Ok(subject) if subject.common_name.is_empty() => Standing::Absent,
            Ok(subject) => {
                let mut user = subject.into_user(certificate);
                user.mark_authenticated();
                Standing::Trusted(Arc::new(user))
            }
        }
    }
}

/// The next second after `now` at which a certificate or a CA starts or ends to be valid. Dates of certificates that do not
/// matter only cause a judgement more.
fn next_date(chain: &[CertificateDer<'_>], trust: &Trust, now: UnixTime) -> u64 {
    let of_chain = chain
        .iter()
        .filter_map(validity)
        .flat_map(|validity| [validity.start, validity.end]);
    let of_proxy = trust.request_header.iter().flat_map(|rh| rh.ca.dates());
    let of_client = trust.client_ca.iter().flat_map(|ca| ca.dates());
    of_chain
        .chain(of_proxy)
        .chain(of_client)
        .filter(|&date| date > now.as_secs())
        .min()
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::serving::CertificateAuthority;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(time: SystemTime) -> UnixTime {
        UnixTime::since_unix_epoch(time.duration_since(SystemTime::UNIX_EPOCH).unwrap())
    }

    #[test]
    fn a_certificate_starts_and_stops_to_count_on_an_open_connection() {
        let (ca, now) = (CertificateAuthority::new("ca").unwrap(), SystemTime::now());
        let pair = ca
            .client_certificate("ann", Some("dev"), now + HOUR..now + 2 * HOUR)
            .unwrap();
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        let connection = Connection::new(([127, 0, 0, 1], 1).into(), vec![certificate]);
        let data = [("client-ca-file".to_owned(), ca.certificate().to_owned())].into();
        let (trust, problems) = Trust::parse(&data, 1);
        assert!(problems.is_empty());

        let standing = |time| match &Judgement::on(&connection, &trust, at(time)).client {
            Standing::Trusted(user) => {
                assert_eq!(user.name, "ann");
                assert_eq!(user.groups, ["dev", "system:authenticated"]);
                assert!(
                    user.extra["authentication.kubernetes.io/credential-id"][0]
                        .starts_with("X509SHA256=")
                );
                true
            }
            Standing::Refused(_) => false,
            Standing::Absent => panic!("there is a certificate"),
        };
        let judgement = || connection.recall::<Judgement>().unwrap();
        assert!(!standing(now));
        let early = judgement();
        assert!(!standing(now + HOUR / 2));
        assert!(Arc::ptr_eq(&early, &judgement()), "judged once");
        assert!(standing(now + HOUR + HOUR / 2));
        assert!(!standing(now + 2 * HOUR + Duration::from_secs(2)));
    }

    #[test]
    fn an_expired_ca_vouches_for_nobody() {
        let (ca, now) = (CertificateAuthority::new("ca").unwrap(), SystemTime::now());
        let pair = ca
            .client_certificate("ann", None, now..now + 24 * 365 * 10 * HOUR)
            .unwrap();
        let chain = [CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
        let data = [("client-ca-file".to_owned(), ca.certificate().to_owned())].into();
        let (trust, _) = Trust::parse(&data, 1);
        let standing = |time| Judgement::make(&chain, &trust, at(time)).client;
        assert!(matches!(standing(now + HOUR), Standing::Trusted(_)));
        // The CA is valid for a year, the certificate for ten.
        assert!(matches!(
            standing(now + 24 * 365 * 2 * HOUR),
            Standing::Refused(_)
        ));
    }
}
