//! Health as Kubernetes asks for it: `/livez`, `/readyz` and `/healthz` with their named checks.
//!
//! Source: "Kubernetes API health endpoints" of the Kubernetes reference.

use std::{borrow::Cow, fmt::Write as _, sync::Arc};

use parking_lot::{Mutex, RwLock};

/// The check that fails once the process is ending. Part of `/readyz` only.
const SHUTDOWN: &str = "shutdown";

/// Which question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// `/livez`: must this process be restarted?
    Livez,
    /// `/readyz`: may it get requests?
    Readyz,
    /// `/healthz`: the older question; the checks of `/readyz`, but for `shutdown`.
    Healthz,
}

/// The answer to a [`Probe`]: status 200 or 500, `text/plain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// Whether every check that was asked for passes.
    pub healthy: bool,
    /// The body.
    pub text: String,
}

/// All checks of the process. A clone is the same set.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    shared: Arc<Shared>,
}

/// One named check. Its owner reports through it; a clone is the same check.
#[derive(Clone, Debug)]
pub struct Check {
    // The reason why it fails; `None` when it passes. Held for one read or write.
    failure: Arc<Mutex<Option<Cow<'static, str>>>>,
}

#[derive(Debug, Default)]
struct Shared {
    // Locked for a registration or a probe. Ordered as registered.
    checks: RwLock<Vec<Named>>,
}

#[derive(Clone, Debug)]
struct Named {
    name: Cow<'static, str>,
    scope: Scope,
    check: Check,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Livez, readyz and healthz.
    Life,
    /// Readyz and healthz.
    Ready,
    /// Readyz and healthz, and no reason to refuse a request.
    Told,
    /// Readyz.
    Shutdown,
}

impl Readiness {
    /// A set without checks: alive and ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check to `/readyz`. It fails until its first [`Check::pass`].
    pub fn check(&self, name: impl Into<Cow<'static, str>>) -> Check {
        self.add(name.into(), Scope::Ready, Some("not reported yet".into()))
    }

    /// As [`Self::check`], for what keeps new clients away and yet not those who come: some can be served without it.
    pub fn told_check(&self, name: impl Into<Cow<'static, str>>) -> Check {
        self.add(name.into(), Scope::Told, Some("not reported yet".into()))
    }

    /// Adds a check to `/livez` and `/readyz`. It passes until its first [`Check::fail`], which asks for a restart; what may
    /// heal by itself, such as an unreachable node, must never fail here.
    pub fn live_check(&self, name: impl Into<Cow<'static, str>>) -> Check {
        self.add(name.into(), Scope::Life, None)
    }

    /// Fails `/readyz` from now on, so that no new request is sent here while the last ones are answered.
    pub fn shutting_down(&self) {
        if !self
            .shared
            .checks
            .read()
            .iter()
            .any(|named| named.scope == Scope::Shutdown)
        {
            self.add(
                SHUTDOWN.into(),
                Scope::Shutdown,
                Some("process is shutting down".into()),
            );
        }
    }

    /// Whether every check of `/readyz` passes.
    pub fn is_ready(&self) -> bool {
        let checks = self.shared.checks.read();
        checks
            .iter()
            .all(|named| named.check.failure.lock().is_none())
    }

    /// Whether requests are to be served: every check passes, but for those that only keep new clients away, as a process
    /// does that is ending.
    pub fn serves(&self) -> bool {
        let checks = self.shared.checks.read();
        let mut wanted = checks
            .iter()
            .filter(|named| matches!(named.scope, Scope::Life | Scope::Ready));
        wanted.all(|named| named.check.failure.lock().is_none())
    }

    /// Answers a probe. `query` is the request's raw query: `verbose`, `exclude=NAME`.
    pub fn answer(&self, probe: Probe, query: &str) -> ProbeAnswer {
        let query = Query::parse(query);
        let checks = self.shared.checks.read();
        let asked: Vec<&Named> = checks
            .iter()
            .filter(|named| probe.includes(named.scope))
            .collect();
        let mut text = String::from("[+]ping ok\n");
        let mut healthy = true;
        for named in &asked {
            let passes = named.check.failure.lock().is_none();
            // Writing to a String does not fail. The cause is withheld: this page needs no authorization.
            let _ = match (query.excludes(&named.name), passes) {
                (true, _) => writeln!(text, "[+]{} excluded: ok", named.name),
                (_, true) => writeln!(text, "[+]{} ok", named.name),
                (_, false) => writeln!(text, "[-]{} failed: reason withheld", named.name),
            };
            healthy &= passes || query.excludes(&named.name);
        }
        for name in query
            .exclude
            .iter()
            .filter(|name| !asked.iter().any(|named| named.name == **name))
        {
            let _ = writeln!(
                text,
                "warn: some health checks cannot be excluded: no matches for {name:?}"
            );
        }
        let _ = writeln!(
            text,
            "{} check {}",
            probe.name(),
            if healthy { "passed" } else { "failed" }
        );
        if healthy && !query.verbose {
            text = "ok".to_owned();
        }
        ProbeAnswer { healthy, text }
    }

    /// Answers a probe's single check, such as `/readyz/inventory`; `None` when there is no such check. The answer names the
    /// cause, and its path needs authorization.
    pub fn answer_one(&self, probe: Probe, name: &str) -> Option<ProbeAnswer> {
        let checks = self.shared.checks.read();
        let failure = match checks
            .iter()
            .find(|named| named.name == name && probe.includes(named.scope))
        {
            Some(named) => named.check.failure.lock().clone(),
            None if name == "ping" => None,
            None => return None,
        };
        Some(ProbeAnswer {
            healthy: failure.is_none(),
            text: failure.map_or_else(
                || "ok".to_owned(),
                |reason| format!("internal server error: {reason}"),
            ),
        })
    }

    fn add(
        &self,
        name: Cow<'static, str>,
        scope: Scope,
        failure: Option<Cow<'static, str>>,
    ) -> Check {
        let check = Check {
            failure: Arc::new(Mutex::new(failure)),
        };
        self.shared.checks.write().push(Named {
            name,
            scope,
            check: check.clone(),
        });
        check
    }
}

impl Check {
    /// The check holds.
    pub fn pass(&self) {
        *self.failure.lock() = None;
    }

    /// The check does not hold, for a reason that only the log and the check's own page show.
    pub fn fail(&self, reason: impl Into<Cow<'static, str>>) {
        *self.failure.lock() = Some(reason.into());
    }

    /// Whether the check holds.
    pub fn passes(&self) -> bool {
        self.failure.lock().is_none()
    }
}

impl Probe {
    fn includes(self, scope: Scope) -> bool {
        match self {
            Self::Livez => scope == Scope::Life,
            Self::Readyz => true,
            Self::Healthz => scope != Scope::Shutdown,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Livez => "livez",
            Self::Readyz => "readyz",
            Self::Healthz => "healthz",
        }
    }
}

struct Query<'a> {
    verbose: bool,
    exclude: Vec<Cow<'a, str>>,
}

impl<'a> Query<'a> {
    fn parse(query: &'a str) -> Self {
        let pairs = query
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let decode =
            |value: &'a str| percent_encoding::percent_decode_str(value).decode_utf8_lossy();
        Self {
            verbose: pairs.clone().any(|(key, _)| key == "verbose"),
            exclude: pairs
                .filter(|&(key, _)| key == "exclude")
                .map(|(_, value)| decode(value))
                .collect(),
        }
    }

    fn excludes(&self, name: &str) -> bool {
        self.exclude.iter().any(|excluded| excluded == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_readiness() -> (Readiness, Check, Check) {
        let readiness = Readiness::new();
        let inventory = readiness.check("inventory");
        let writer = readiness.live_check("writer");
        (readiness, inventory, writer)
    }

    #[test]
    fn ready_only_once_every_check_has_passed() {
        let (readiness, inventory, _) = mk_readiness();
        let answer = readiness.answer(Probe::Readyz, "");
        assert!(!answer.healthy && !readiness.is_ready());
        assert_eq!(
            answer.text,
            "[+]ping ok\n[-]inventory failed: reason withheld\n[+]writer ok\nreadyz check failed\n"
        );
        inventory.pass();
        assert_eq!(
            readiness.answer(Probe::Readyz, ""),
            ProbeAnswer {
                healthy: true,
                text: "ok".to_owned()
            }
        );
        inventory.fail("watch cut");
        assert!(!readiness.is_ready());
    }

    #[test]
    fn what_heals_by_itself_never_fails_livez() {
        let (readiness, _, writer) = mk_readiness();
        assert!(readiness.answer(Probe::Livez, "").healthy);
        writer.fail("deadlocked");
        assert!(!readiness.answer(Probe::Livez, "").healthy);
    }

    #[test]
    fn checks_can_be_excluded_and_listed() {
        let (readiness, ..) = mk_readiness();
        let answer = readiness.answer(Probe::Readyz, "verbose&exclude=inventory&exclude=no%20such");
        assert!(answer.healthy);
        assert_eq!(
            answer.text,
            "[+]ping ok\n[+]inventory excluded: ok\n[+]writer ok\n\
             warn: some health checks cannot be excluded: no matches for \"no such\"\nreadyz check passed\n"
        );
    }

    #[test]
    fn a_single_check_tells_its_cause() {
        let (readiness, inventory, _) = mk_readiness();
        inventory.fail("forbidden");
        let answer = readiness.answer_one(Probe::Readyz, "inventory").unwrap();
        assert_eq!(answer.text, "internal server error: forbidden");
        assert!(!answer.healthy);
        assert_eq!(readiness.answer_one(Probe::Livez, "inventory"), None);
        assert!(readiness.answer_one(Probe::Livez, "ping").unwrap().healthy);
    }

    #[test]
    fn what_is_only_told_keeps_no_request_away() {
        let (readiness, inventory, _) = mk_readiness();
        let told = readiness.told_check("told");
        assert!(!readiness.serves());
        inventory.pass();
        assert!(readiness.serves() && !readiness.is_ready());
        assert!(!readiness.answer(Probe::Readyz, "").healthy);
        told.pass();
        assert!(readiness.is_ready());
    }

    #[test]
    fn shutdown_fails_readyz_alone() {
        let (readiness, inventory, _) = mk_readiness();
        inventory.pass();
        readiness.shutting_down();
        readiness.shutting_down();
        assert!(!readiness.answer(Probe::Readyz, "").healthy);
        assert!(readiness.answer(Probe::Healthz, "").healthy);
        assert!(readiness.answer(Probe::Livez, "").healthy);
        assert_eq!(readiness.shared.checks.read().len(), 3);
    }
}
