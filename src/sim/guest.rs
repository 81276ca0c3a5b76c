//! Endpoints that lead into the guest, which a simulated sandbox has not: each refuses as a daemon does that cannot reach it.

use http::{StatusCode, header};

use super::{
    Generation, Refusal, auth,
    body::{ExecBody, NamedBody, lenient, strict},
    claim::{Number, Phase},
    endpoints::{Answer, Call},
    reply::Reply,
};

impl Call<'_> {
    /// No preview listener stands behind these nodes.
    pub(super) fn preview(&self) -> Answer {
        self.caller()?;
        let body: NamedBody = lenient(self.body()?)?;
        self.daemon().find_with_token(self.id(), &body.token)?;
        let text = "no preview listener configured";
        Err(Refusal::with_status(StatusCode::NOT_IMPLEMENTED, text))
    }

    pub(super) fn exec(&self) -> Answer {
        let number = auth::sandbox(&self.daemon(), self.headers, self.id())?;
        let body: ExecBody = strict(self.body()?)?;
        if body.argv.is_empty() || body.timeout_seconds < 0 {
            return Err(Refusal::bad(
                "argv is required and timeout_seconds not negative",
            ));
        }
        self.no_guest(number)
    }

    pub(super) fn agent(&self) -> Answer {
        auth::sandbox_token(self.headers)?;
        if !self.upgrades_to("silkd") {
            return Ok(upgrade_required("silkd"));
        }
        let number = auth::sandbox(&self.daemon(), self.headers, self.id())?;
        self.no_guest(number)
    }

    pub(super) fn port(&self) -> Answer {
        auth::sandbox_token(self.headers)?;
        if !self.upgrades_to("tcp") {
            return Ok(upgrade_required("tcp"));
        }
        if self.segments[1].parse::<u16>().unwrap_or(0) == 0 {
            return Err(Refusal::bad("invalid port"));
        }
        let number = self.sandbox_or_root()?;
        self.no_guest(number)
    }

    fn upgrades_to(&self, protocol: &str) -> bool {
        let value = self.headers.get(header::UPGRADE);
        value.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(protocol.as_bytes()))
    }

    /// A simulated sandbox has no guest, and a daemon that cannot reach the guest says so.
    fn no_guest(&self, number: Number) -> Answer {
        let failed = self.daemon().claim_of(number)?.phase == Phase::Failed;
        if failed && self.generation() >= Generation::C {
            return Err(Refusal::conflict("sandbox has failed"));
        }
        let text = "guest unreachable: the sandbox is simulated";
        Err(Refusal::with_status(StatusCode::BAD_GATEWAY, text))
    }
}

fn upgrade_required(protocol: &'static str) -> Reply {
    let refusal = Refusal::with_status(StatusCode::UPGRADE_REQUIRED, "upgrade required");
    Reply {
        upgrade: Some(protocol),
        ..refusal.into()
    }
}
