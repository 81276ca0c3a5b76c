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
    api_services::ApiServices,
    authority::Authority,
    bundle::Bundle,
    config_map::Notice,
    kept::{Found, Kept, Step},
    lifetime::{Lifetime, timestamp},
    secret::{Store, TRIES},
};
use crate::{
    sequencer::Tenure,
    serving::{CertificateAuthority, TlsMaterial},
    telemetry::Check,
};

/// Time between two looks at everything, when nothing is due.
const PERIOD: Duration = Duration::from_secs(30);
/// Least time between two looks: bounds a quarrel with somebody who writes the same fields.
const LEAST: Duration = Duration::from_secs(1);
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
    serving: Option<Serving>,
}

/// What is served.
struct Serving {
    issuer: Arc<Authority>,
    lifetime: Lifetime,
}

impl Keeper {
    /// A keeper that serves a certificate of no CA yet: enough for the kubelet's probes, which verify nothing, until
    /// [`Self::run`] knows better. `client` repeats nothing by itself.
    ///
    /// # Errors
    /// [`Error::Issue`] when the system has no random numbers, or a name of the options is not ASCII.
    pub fn new(client: Client, options: Options, metrics: CertificateMetrics) -> Result<Self> {
        let names = options.server_names();
        let nobody = CertificateAuthority::new("sandbox-apiserver starting");
        let pair = nobody.and_then(|nobody| nobody.server_certificate(&borrowed(&names)));
        let material = pair.and_then(|pair| TlsMaterial::from_pem(&pair));
        Ok(Self {
            names,
            store: Store::new(client.clone(), &options),
            notice: Notice::new(client.clone(), &options),
            api_services: ApiServices::new(client, &options),
            material: Arc::new(material.map_err(Error::Issue)?),
            metrics,
            tenure: None,
            serving: None,
            options,
        })
    }

    /// What is served, now and later.
    pub fn material(&self) -> Arc<TlsMaterial> {
        self.material.clone()
    }

    /// Serves by what is kept, and from `elected` on looks after it. `check` passes while a certificate is served that clients
    /// can verify: failing to renew does not make the server unready, only the end of the certificate does.
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
            sleep(LEAST).await;
            let _ = timeout(wait.saturating_sub(LEAST), changes.next()).await;
            // One look is enough for all that has changed by now.
            while changes.next().now_or_never().flatten().is_some() {}
        }
    }

    /// Brings everything to where it should be.
    async fn round(&mut self) -> Result<()> {
        self.renew()?;
        let (kept, made) = self.kept().await?;
        if let Some(kept) = kept {
            self.adopt(kept).await?;
        }
        made
    }

    /// Renews the served certificate by the CA it is from, for which nobody needs to be asked.
    fn renew(&mut self) -> Result<()> {
        let now = SystemTime::now();
        match &self.serving {
            Some(serving) if serving.renewal().is_some_and(|due| due <= now) => {
                let issuer = serving.issuer.clone();
                self.serve(issuer)
            }
            _ => Ok(()),
        }
    }

    /// The CA that is kept, if there is one. It is made or replaced when that is due and this process's to do; when that fails,
    /// the one before is as good as it was.
    async fn kept(&self) -> Result<(Option<Kept>, Result<()>)> {
        for _ in 0..TRIES {
            let (secret, now) = (self.store.read().await?, SystemTime::now());
            let found = Found::of(secret.as_ref(), &borrowed(&self.names), now);
            let (trusted, reason, otherwise) = match found.step(self.leads(), now, &self.options)? {
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
        let Kept { authority, bundle } = kept;
        match &self.serving {
            Some(serving) if serving.issuer.certificate() == authority.certificate() => {
                self.publish(&bundle).await
            }
            Some(serving) if self.leads() && !serving.issuer.lifetime.is_over(now) => {
                let both = bundle.clone().and(Bundle::of(&serving.issuer));
                self.publish(&both).await?;
                sleep(self.options.pause()).await;
                self.serve(authority)?;
                self.publish(&bundle).await
            }
            // Nobody verifies what is served now, so nothing is lost by serving what is not published yet.
            _ => {
                let published = self.publish(&bundle).await;
                self.serve(authority)?;
                published
            }
        }
    }

    async fn publish(&mut self, bundle: &Bundle) -> Result<()> {
        if !self.leads() {
            return Ok(());
        }
        let told = self.api_services.publish(bundle).await;
        told.and(self.notice.publish(bundle).await)
    }

    fn serve(&mut self, issuer: Arc<Authority>) -> Result<()> {
        let duration = self.options.certificate_duration;
        let issued = issuer.issue(&borrowed(&self.names), SystemTime::now(), duration)?;
        self.material.replace(&issued.pair).map_err(Error::Issue)?;
        let (ends, ca_ends) = (issued.lifetime.ends, issuer.lifetime.ends);
        self.metrics.serving_expiration.set(timestamp(ends));
        self.metrics.ca_expiration.set(timestamp(ca_ends));
        tracing::info!(expires = %in_words(ends), ca_expires = %in_words(ca_ends), "serving a new certificate");
        self.serving = Some(Serving {
            issuer,
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
        let authority = self.leads().then(|| serving.issuer.lifetime.renewal());
        let due = [serving.renewal(), authority].into_iter().flatten().min();
        let due = due.map(|due| due.duration_since(now).unwrap_or_default());
        due.map_or(PERIOD, |due| due.min(PERIOD))
    }

    fn report(&self, outcome: &Result<()>, check: &Check) {
        let now = SystemTime::now();
        let lives = self
            .serving
            .iter()
            .map(|it| (&it.lifetime, &it.issuer.lifetime));
        let is = |judge: fn(&Lifetime, SystemTime) -> bool| {
            lives
                .clone()
                .any(|(own, ca)| judge(own, now) || judge(ca, now))
        };
        match &self.serving {
            None => check.fail("there is no certificate yet"),
            Some(_) if is(Lifetime::is_over) => check.fail("the certificate has ended"),
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
                tracing::error!(error, expires = %in_words(serving.lifetime.ends), ca_expires = %in_words(serving.issuer.lifetime.ends), "the certificate cannot be renewed and is about to end");
            }
            None => tracing::error!(error, "there is no certificate yet"),
        }
    }
}

impl Serving {
    /// When to renew; `None` when a new certificate would end with the CA as this one does.
    fn renewal(&self) -> Option<SystemTime> {
        (self.lifetime.ends < self.issuer.lifetime.ends).then(|| self.lifetime.renewal())
    }
}

fn borrowed(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

fn in_words(time: SystemTime) -> String {
    let time = jiff::Timestamp::from_second(timestamp(time));
    time.map_or_else(|_| "never".to_owned(), |time| time.to_string())
}
