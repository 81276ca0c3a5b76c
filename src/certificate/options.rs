//! For whom the certificate is, and where its CA is kept.

use std::time::Duration;

/// The longest pause between publishing a CA and serving by it.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// For whom the certificate is, and where its CA is kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// Namespace of the Service, the Secret and the ConfigMap.
    pub namespace: String,
    /// Name of the Service that kube-apiserver reaches this server at.
    pub service: String,
    /// Name of the Secret that holds the CA with its key, and of the ConfigMap that holds what clients trust.
    pub secret: String,
    /// DNS names and addresses of the certificate beside the Service's.
    pub names: Vec<String>,
    /// Names of the APIServices whose `caBundle` is kept right.
    pub api_services: Vec<String>,
    /// Life of a serving certificate.
    pub certificate_duration: Duration,
    /// Life of a CA.
    pub ca_duration: Duration,
}

impl Options {
    /// What the certificate is for. The first is what kube-apiserver asks for, whatever address it dials; the fourth and fifth
    /// are there for `kubectl port-forward`.
    pub(super) fn server_names(&self) -> Vec<String> {
        let Self {
            namespace, service, ..
        } = self;
        let mut names = vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}"),
            service.clone(),
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
        ];
        names.extend(self.names.iter().cloned());
        names
    }

    /// Between publishing a CA and serving by it: every kube-apiserver hears of it by a watch, which takes milliseconds where
    /// nothing is wrong. A twelfth of the certificate's life, at most a minute.
    pub(super) fn pause(&self) -> Duration {
        (self.certificate_duration / 12).min(LONGEST_PAUSE)
    }

    /// Namespace and name, for people.
    pub(super) fn secret_path(&self) -> String {
        format!("{}/{}", self.namespace, self.secret)
    }
}
