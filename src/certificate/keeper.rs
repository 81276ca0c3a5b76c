//! Keeps the CA, the served certificate and what clients trust as they should be.

use std::{
    convert::Infallible,
    error::Error as StdError,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::{FutureExt, StreamExt};
use kube::Client;
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{
    CertificateMetrics, Error, Options, Result,
    api_services::{ApiServices, LEAST},
    authority::Authority,
    bundle::Bundle,
    config_map::Notice,
    kept::{Found, Kept, Step},
    lifetime::{Lifetime, timestamp},
    secret::{Store, TRIES},
};
use crate::{sequencer::Tenure, serving::TlsMaterial, telemetry::Check};

/// Time between two looks at everything, when nothing is due.
const PERIOD: Duration = Duration::from_secs(30);
/// Longest pause after a failure; the first is [`LEAST`].
const LONGEST: Duration = Duration::from_secs(60);

/// Keeps the CA, the served certificate and what clients trust as they should be.
pub struct Keeper {
    options: Options,
    names: Vec<String>,
    store: Store,
    notice: Notice,
    api_services: ApiServices,
    material: Arc<TlsMaterial>,
    metrics: CertificateMetrics,
    tenure: Option<Tenure>,
    /// Whether the APIServices have had the CA. Before that nobody can come by way of kube-apiserver.
    registered: bool,
    serving: Option<Serving>,
}

/// What is served.
struct Serving {
    kept: Kept,
    lifetime: Lifetime,
}

impl Keeper {
    /// A keeper that serves a certificate of no CA yet: enough for the kubelet's probes, which verify nothing, until
    /// [`Self::run`] knows better. `client` repeats nothing by itself.
    ///
    /// # Errors
    /// [`Error::Name`] for a name of the options that cannot be verified: better now than with each certificate.
    /// [`Error::Issue`] when the system has no random numbers.
    pub fn new(client: Client, options: Options, metrics: CertificateMetrics) -> Result<Self> {
        let names = options.server_names();
        let now = SystemTime::now();
        let nobody = Authority::new(now, options.ca_duration)?;
        let first = nobody.issue(&borrowed(&names), now, options.certificate_duration)?;
        let material = TlsMaterial::from_pem(&first.pair);
        Ok(Self {
            names,
            store: Store::new(client.clone(), &options),
            notice: Notice::new(client.clone(), &options),
            api_services: ApiServices::new(client, &options),
            material: Arc::new(material.map_err(Error::Issue)?),
            metrics,
            tenure: None,
            registered: false,
            serving: None,
            options,
        })
    }

    /// What is served, now and later.
    pub fn material(&self) -> Arc<TlsMaterial> {
        self.material.clone()
    }

    /// Serves by what is kept, and from `elected` on looks after it. `check` passes from when the APIServices have had the CA,
    /// while the certificate is valid: failing to renew does not make the server unready, only the end of the certificate does.
    ///
    /// Whatever goes wrong is logged, counted and tried again. Runs until it is dropped.
    pub async fn run(mut self, check: Check, elected: oneshot::Receiver<Tenure>) {
        // A sender that is dropped is that of a process that ends before it is elected.
        let elected = async {
            match elected.await {
                Ok(tenure) => tenure,
                Err(_) => std::future::pending().await,
            }
        };
        let tenure = tokio::select! {
            tenure = elected => tenure,
            never = self.follow(&check) => match never {},
        };
        self.tenure = Some(tenure);
        self.follow(&check).await;
    }

    async fn follow(&mut self, check: &Check) -> Infallible {
        let mut changes = match self.tenure {
            Some(_) => self.api_services.changes(),
            None => futures::stream::pending().boxed(),
        };
        let mut pause = LEAST;
        loop {
            let outcome = self.round().await;
            self.report(&outcome, check);
            let wait = match outcome {
                Ok(()) => {
                    pause = LEAST;
                    self.until_due(SystemTime::now())
                }
                Err(_) => {
                    pause = (pause * 2).min(LONGEST);
                    pause / 2
                }
            };
            // Not so long that something becomes due meanwhile.
            let least = self.api_services.pause().min(wait).max(LEAST);
            sleep(least).await;
            let _ = timeout(wait.saturating_sub(least), changes.next()).await;
            // One look is enough for all that has changed by now.
            while changes.next().now_or_never().flatten().is_some() {}
        }
    }

    /// Brings everything to where it should be.
    async fn round(&mut self) -> Result<()> {
        let renewed = self.renew();
        let (kept, made) = match self.kept().await {
            Ok(found) => found,
            Err(error) => (None, Err(error)),
        };
        let adopted = match (kept, &self.serving) {
            (Some(kept), _) => self.adopt(kept).await,
            // What is served is to be trusted, whatever has become of the Secret.
            (None, Some(serving)) => {
                let bundle = serving.kept.bundle_at(SystemTime::now());
                self.publish(&bundle).await
            }
            (None, None) => Ok(()),
        };
        renewed.and(made).and(adopted)
    }

    /// Renews the served certificate by the CA it is from, for which nobody needs to be asked.
    fn renew(&mut self) -> Result<()> {
        let now = SystemTime::now();
        match &self.serving {
            Some(serving) if serving.is_due(now) => {
                let kept = serving.kept.clone();
                self.serve(kept)
            }
            _ => Ok(()),
        }
    }

    /// The CA that is kept, if there is one. It is made or replaced when that is due and this process's to do; when that fails,
    /// the one before is as good as it was.
    async fn kept(&self) -> Result<(Option<Kept>, Result<()>)> {
        for _ in 0..TRIES {
            let (secret, now) = (self.store.read().await?, SystemTime::now());
            let found = Found::of(secret.as_ref(), now);
            let served = self.serving.as_ref().map(|serving| &serving.kept);
            let step = found.step(self.leads(), now, &self.options, served)?;
            let (trusted, reason, otherwise) = match step {
                Step::Use(kept) => return Ok((Some(kept), Ok(()))),
                Step::Wait => return Ok((None, Ok(()))),
                Step::Make {
                    trusted,
                    reason,
                    otherwise,
                } => (trusted, reason, otherwise),
            };
            let authority = Authority::new(now, self.options.ca_duration)?;
            let authority = match &otherwise {
                Some(before) if !before.authority.lifetime.is_over(now) => {
                    authority.succeeding(&before.authority)?
                }
                _ => authority,
            };
            let kept = Kept::new(authority, trusted);
            let secret = kept.to_secret(&self.options, secret.as_ref());
            match self.store.write(&secret).await {
                Ok(true) => {
                    tracing::info!(secret = self.options.secret_path(), reason, "made a CA");
                    return Ok((Some(kept), Ok(())));
                }
                // Another process has made one in the same moment: that is the one.
                Ok(false) => {}
                Err(error) => return Ok((otherwise, Err(error))),
            }
        }
        Err(Error::Raced {
            secret: self.options.secret_path(),
        })
    }

    /// Publishes the CA and serves by it, in an order in which nobody is shown what he cannot verify.
    async fn adopt(&mut self, kept: Kept) -> Result<()> {
        let now = SystemTime::now();
        let (leads, bundle) = (self.leads(), kept.bundle.clone());
        match &mut self.serving {
            Some(serving) if serving.issuer().certificate() == kept.authority.certificate() => {
                serving.kept.bundle = kept.bundle;
                self.publish(&bundle).await
            }
            Some(serving) if leads && serving.issuer().lifetime.is_valid_at(now) => {
                let both = bundle.clone().and(Bundle::of(serving.issuer()));
                self.register(&both).await?;
                // Whoever misses the ConfigMap trusts the old CA, and by its bridge the new one. Waiting for it would wait
                // until the old one ends.
                let notified = self.notify(&both).await;
                sleep(self.options.pause()).await;
                self.serve(kept)?;
                notified.and(self.publish(&bundle).await)
            }
            // Nobody verifies what is served now, so nothing is lost by serving what is not published yet.
            _ => {
                let published = self.publish(&bundle).await;
                self.serve(kept)?;
                published
            }
        }
    }

    async fn publish(&mut self, bundle: &Bundle) -> Result<()> {
        let registered = self.register(bundle).await;
        registered.and(self.notify(bundle).await)
    }

    /// For kube-apiserver.
    async fn register(&mut self, bundle: &Bundle) -> Result<()> {
        if self.leads() {
            self.api_services.publish(bundle).await?;
            self.registered = true;
        }
        Ok(())
    }

    /// For clients that come directly.
    async fn notify(&self, bundle: &Bundle) -> Result<()> {
        match self.leads() {
            true => self.notice.publish(bundle).await,
            false => Ok(()),
        }
    }

    fn serve(&mut self, kept: Kept) -> Result<()> {
        let issuer = &kept.authority;
        let duration = self.options.certificate_duration;
        let issued = issuer.issue(&borrowed(&self.names), SystemTime::now(), duration)?;
        self.material.replace(&issued.pair).map_err(Error::Issue)?;
        let (ends, ca_ends) = (issued.lifetime.ends, issuer.lifetime.ends);
        self.metrics.serving_expiration.set(timestamp(ends));
        self.metrics.ca_expiration.set(timestamp(ca_ends));
        tracing::info!(expires = %in_words(ends), ca_expires = %in_words(ca_ends), "serving a new certificate");
        self.serving = Some(Serving {
            kept,
            lifetime: issued.lifetime,
        });
        Ok(())
    }

    /// Whether this process is the one that writes.
    fn leads(&self) -> bool {
        self.tenure.as_ref().is_some_and(Tenure::holds)
    }

    /// Time until something is to be done.
    fn until_due(&self, now: SystemTime) -> Duration {
        let Some(serving) = &self.serving else {
            return LEAST;
        };
        let authority = self.leads().then(|| serving.issuer().lifetime.renewal());
        let due = [serving.renewal(), authority].into_iter().flatten().min();
        let due = due.map(|due| due.duration_since(now).unwrap_or_default());
        due.map_or(PERIOD, |due| due.min(PERIOD))
    }

    fn report(&self, outcome: &Result<()>, check: &Check) {
        let now = SystemTime::now();
        let lives = self
            .serving
            .iter()
            .map(|it| (&it.lifetime, &it.issuer().lifetime));
        let is = |judge: fn(&Lifetime, SystemTime) -> bool| {
            lives
                .clone()
                .any(|(own, ca)| judge(own, now) || judge(ca, now))
        };
        match &self.serving {
            None => check.fail("there is no certificate yet"),
            Some(_) if !self.registered => check.fail("the APIServices do not have the CA yet"),
            Some(_) if is(|life, now| !life.is_valid_at(now)) => {
                check.fail("the certificate is not valid");
            }
            Some(_) => check.pass(),
        }
        let Err(error) = outcome else {
            return;
        };
        self.metrics.failures.inc();
        let error = error as &dyn StdError;
        match &self.serving {
            Some(serving) if !is(Lifetime::is_ending) => {
                tracing::warn!(error, expires = %in_words(serving.lifetime.ends), "certificate");
            }
            Some(serving) => {
                tracing::error!(error, expires = %in_words(serving.lifetime.ends), ca_expires = %in_words(serving.issuer().lifetime.ends), "the certificate cannot be renewed and is about to end");
            }
            None => tracing::error!(error, "there is no certificate yet"),
        }
    }
}

impl Serving {
    fn issuer(&self) -> &Authority {
        &self.kept.authority
    }

    /// Whether its CA can issue one that is better: later, or of a clock that has been put back since.
    fn is_due(&self, now: SystemTime) -> bool {
        let is_due = now < self.lifetime.begins || self.renewal().is_some_and(|due| due <= now);
        is_due && self.issuer().lifetime.is_valid_at(now)
    }

    /// When to renew; `None` when a new certificate would end with the CA as this one does.
    fn renewal(&self) -> Option<SystemTime> {
        (self.lifetime.ends < self.issuer().lifetime.ends).then(|| self.lifetime.renewal())
    }
}

fn borrowed(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

fn in_words(time: SystemTime) -> String {
    let time = jiff::Timestamp::from_second(timestamp(time));
    time.map_or_else(|_| "never".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    /// A certificate for a week, made `ahead` of now by a CA for a year, made `ca_ahead` of now.
    fn mk_serving(now: SystemTime, ahead: Duration, ca_ahead: Duration) -> Serving {
        let authority = Authority::new(now + ca_ahead, HOUR * 8_760).unwrap();
        Serving {
            kept: Kept::new(authority, Bundle::default()),
            lifetime: Lifetime::new(now + ahead, HOUR * 168),
        }
    }

    #[tokio::test]
    async fn a_name_that_no_client_can_ask_for_is_refused_before_anything_is_written() {
        let config = kube::Config::new("http://localhost".parse().unwrap());
        let options = Options {
            namespace: "y".to_owned(),
            service: "x".to_owned(),
            secret: "ca".to_owned(),
            names: vec!["*.x.example".to_owned()],
            api_services: Vec::new(),
            certificate_duration: HOUR,
            ca_duration: HOUR,
        };
        let client = Client::try_from(config).unwrap();
        let refused = Keeper::new(client, options, CertificateMetrics::default()).err();
        let text = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.starts_with("\"*.x.example\" is neither"), "{text}");
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_and_when_the_clock_is_put_back() {
        let now = SystemTime::now();
        let serving = mk_serving(now, HOUR * 8, Duration::ZERO);
        for (hours, expected) in [(0, true), (7, true), (8, false), (119, false), (120, true)] {
            assert_eq!(serving.is_due(now + HOUR * hours), expected, "{hours} h");
        }
        // By a CA that is not valid yet either, there is no better one to be had.
        assert!(!mk_serving(now, HOUR * 8, HOUR * 8).is_due(now));
    }
}
