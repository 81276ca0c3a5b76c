//! Endpoints that lead into the guest: commands for a toy shell, and the guest's agent. There are no ports and no previews.

use std::time::Duration;

use http::{StatusCode, header};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::{
    Generation, Refusal, auth,
    body::{ExecBody, NamedBody, lenient, strict},
    claim::{Number, Phase},
    endpoints::{Answer, Call},
    reply::Reply,
    shell::{Command, Run},
};

/// Commands without a limit end too: a simulation has nothing to do for years.
const LONGEST: Duration = Duration::from_secs(86_400);

impl Call<'_> {
    /// No preview listener stands behind these nodes.
    pub(super) fn preview(&self) -> Answer {
        self.caller()?;
        let body: NamedBody = lenient(self.body()?)?;
        self.daemon().find_with_token(self.id(), &body.token)?;
        let text = "no preview listener configured";
        Err(Refusal::with_status(StatusCode::NOT_IMPLEMENTED, text))
    }

    pub(super) async fn exec(&self) -> Answer {
        let number = auth::sandbox(&self.daemon(), self.headers, self.id())?;
        let body: ExecBody = strict(self.body()?)?;
        if body.argv.is_empty() || body.timeout_seconds < 0 {
            return Err(Refusal::bad(
                "argv is required and timeout_seconds not negative",
            ));
        }
        self.check_directory(number, &body.cwd)?;
        self.wake_guest(number)?;
        let limit = match body.timeout_seconds {
            0 => LONGEST,
            seconds => Duration::from_secs(seconds.unsigned_abs()).min(LONGEST),
        };
        let run = timeout_at(Instant::now() + limit, self.run(number, &body.argv)).await;
        let too_long = |_| Refusal::with_status(StatusCode::GATEWAY_TIMEOUT, "exec timed out");
        let run = run.map_err(too_long)??;
        if run.says_too_much() {
            let text = "output over 8 MiB";
            return Err(Refusal::with_status(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        Ok(Reply::json(&json!({
            "exit_code": run.exit_code,
            "stdout": String::from_utf8_lossy(&run.stdout),
            "stderr": String::from_utf8_lossy(&run.stderr),
        })))
    }

    /// What a shell makes of its `-c`, and anybody else of its arguments.
    async fn run(&self, number: Number, argv: &[String]) -> Result<Run, Refusal> {
        let commands = match argv {
            [shell, flag, line] if flag == "-c" && shell.ends_with("sh") => Command::parse(line),
            argv => Ok(vec![Command::of_words(argv)]),
        };
        let commands = match commands {
            Ok(commands) => commands,
            Err(sign) => return Ok(Run::unreadable(&sign)),
        };
        let mut run = Run::default();
        for command in &commands {
            if !run.reaches(command) {
                continue;
            }
            tokio::time::sleep(command.takes()).await;
            let mut daemon = self.daemon();
            let now = daemon.now.0 / 1_000;
            let files = &mut daemon.claim_of(number)?.extra_mut().files;
            run.step(command, files, now);
            if run.says_too_much() {
                break;
            }
        }
        Ok(run)
    }

    fn check_directory(&self, number: Number, directory: &str) -> Result<(), Refusal> {
        let mut daemon = self.daemon();
        let claim = daemon.claim_of(number)?;
        let files = claim.extra.as_ref().map(|extra| extra.files.clone());
        let found = files.unwrap_or_default().list(directory);
        let refused = |_| Refusal::bad("the guest cannot start the command there");
        found.map(drop).map_err(refused)
    }

    pub(super) fn agent(&self) -> Answer {
        auth::sandbox_token(self.headers)?;
        if !self.upgrades_to("silkd") {
            return Ok(upgrade_required("silkd"));
        }
        let number = auth::sandbox(&self.daemon(), self.headers, self.id())?;
        self.wake_guest(number)?;
        Ok(Reply::into_guest(number))
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
        self.check_not_failed(number)?;
        let text = "nothing listens there: the sandbox is simulated";
        Err(Refusal::with_status(StatusCode::BAD_GATEWAY, text))
    }

    fn upgrades_to(&self, protocol: &str) -> bool {
        let value = self.headers.get(header::UPGRADE);
        value.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(protocol.as_bytes()))
    }

    /// Whoever comes with the sandbox's own token finds it running.
    fn wake_guest(&self, number: Number) -> Result<(), Refusal> {
        self.check_not_failed(number)?;
        self.daemon().wake(number)
    }

    fn check_not_failed(&self, number: Number) -> Result<(), Refusal> {
        let failed = self.daemon().claim_of(number)?.phase == Phase::Failed;
        match failed && self.generation() >= Generation::C {
            true => Err(Refusal::conflict("sandbox has failed")),
            false => Ok(()),
        }
    }
}

fn upgrade_required(protocol: &'static str) -> Reply {
    let refusal = Refusal::with_status(StatusCode::UPGRADE_REQUIRED, "upgrade required");
    Reply {
        upgrade: Some(protocol),
        ..refusal.into()
    }
}
