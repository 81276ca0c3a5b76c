//! One question to kube-apiserver, with its deadline and its retries.

use std::{fmt::Debug, sync::Arc, time::Duration};

use kube::{Api, Client, Resource, api::PostParams};
use rand::Rng;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep, timeout_at};

use super::{AuthMetrics, Error, Result};

/// Time for a review, retries included.
const DEADLINE: Duration = Duration::from_secs(10);

/// Tries, with a pause that grows from one to the next. A restart of kube-apiserver is shorter than all of them.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const GROWTH: f64 = 1.5;
const JITTER: f64 = 0.2;

/// Posts `question` and returns it as kube-apiserver filled it in. A review changes nothing, so that it may be repeated.
pub(super) async fn review<R>(
    client: Client,
    question: R,
    name: &'static str,
    metrics: AuthMetrics,
) -> Result<R>
where
    R: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    R: Resource<Scope = k8s_openapi::ClusterResourceScope>,
{
    let started = Instant::now();
    let answer = ask(&Api::all(client), &question, name, started + DEADLINE).await;
    metrics.reviewed(name, started.elapsed(), answer.is_ok());
    answer
}

async fn ask<R>(api: &Api<R>, question: &R, name: &'static str, deadline: Instant) -> Result<R>
where
    R: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let timed_out = |_| Error::ReviewTimedOut {
        review: name,
        after: DEADLINE,
    };
    let params = PostParams::default();
    let mut pause = FIRST_PAUSE;
    let mut tries = 1;
    loop {
        let post = api.create(&params, question);
        match timeout_at(deadline, post).await.map_err(timed_out)? {
            Ok(answer) => return Ok(answer),
            Err(error) if tries < TRIES && is_transient(&error) => {
                let wait = pause.mul_f64(1.0 + rand::rng().random_range(0.0..JITTER));
                timeout_at(deadline, sleep(wait)).await.map_err(timed_out)?;
                pause = pause.mul_f64(GROWTH);
                tries += 1;
            }
            Err(error) => {
                return Err(Error::Review {
                    review: name,
                    source: Arc::new(error),
                });
            }
        }
    }
}

/// Whether another try may fare better: the connection broke, or kube-apiserver is busy or failed inside.
fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 500 | 503 | 504),
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}
