//! Child processes that cannot outlive the test binary.
//!
//! Neither a destructor nor a signal handler is enough for that: a `static` is never dropped, and a killed test binary
//! runs no code. So each child is started by a small shell that holds the read end of a pipe whose write end is ours.
//! However we end, the kernel closes our end, and the shell does what is left to do.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

/// Runs `"$@"` and kills it as soon as standard input ends. Ends with the child's own exit status. `$PID_FILE` tells the
/// child's process id.
///
/// SIGKILL, because nothing that the child could write on its way out is wanted.
const RUN_UNTIL_EOF: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- &
child=$!
echo "$child" >"$PID_FILE"
{ read -r _ <&3; kill -KILL "$child"; } 2>/dev/null &
watcher=$!
wait "$child"
status=$?
kill "$watcher" 2>/dev/null
exit "$status"
"#;

/// Waits for the end of standard input and removes `"$1"`, more than once, since killed processes that write there may
/// need a moment to be gone.
const REMOVE_AT_EOF: &str = r#"
read -r _
for _ in 1 2 3 4 5; do
    rm -rf "$1" && exit
    sleep 0.1
done
"#;

/// A running program whose output goes to a log file. Dropping it kills the program and waits until it is gone.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    log: PathBuf,
    supervisor: Supervisor,
}

impl Process {
    /// Starts `binary` with `args` in `dir`, with its output in `dir/name.log`.
    pub(crate) fn start<I, S>(
        name: &'static str,
        binary: &Path,
        args: I,
        dir: &Path,
    ) -> io::Result<Self>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let log = dir.join(format!("{name}.log"));
        // Appended to: what a restarted program says comes after what it said before.
        let output = File::options().create(true).append(true).open(&log)?;
        let mut command = shell(RUN_UNTIL_EOF);
        command
            .arg(binary)
            .args(args)
            .current_dir(dir)
            .env("PID_FILE", log.with_extension("pid"))
            .stdout(output.try_clone()?)
            .stderr(output);
        Ok(Self {
            name,
            log,
            supervisor: Supervisor::start(command)?,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The exit status, if the program has ended.
    pub(crate) fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        self.supervisor.0.try_wait()
    }

    /// Asks the program to end, as an orchestrator does.
    ///
    /// # Panics
    /// When it has not started yet, or has ended.
    pub(crate) fn terminate(&self) {
        let asked = signal("TERM", &self.pid().expect("it has started"));
        assert!(asked, "{} is gone", self.name);
    }

    /// The program's own process id, once it has started.
    pub(crate) fn pid(&self) -> Option<String> {
        let pid = std::fs::read_to_string(self.log.with_extension("pid")).ok()?;
        Some(pid.trim().to_owned()).filter(|pid| !pid.is_empty())
    }

    /// All that it logged.
    pub(crate) fn log(&self) -> String {
        // Lossy: a process that was killed in the middle of a write may leave half a character.
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last `n_lines` lines of the log, under a heading.
    pub(crate) fn log_tail(&self, n_lines: usize) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(n_lines)..];
        format!(
            "--- {}, last {} lines ---\n{}\n",
            self.name,
            tail.len(),
            tail.join("\n")
        )
    }
}

/// Sends a signal, by its name, to a process; whether there is one.
pub(crate) fn signal(name: &str, pid: &str) -> bool {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), pid])
        .stderr(Stdio::null())
        .status();
    sent.is_ok_and(|status| status.success())
}

/// A directory that is removed when this value is dropped or this process ends, whichever comes first.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    _remover: Supervisor,
}

impl Directory {
    pub(crate) fn create(prefix: &str) -> io::Result<Self> {
        let path = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))?
            .keep();
        let mut command = shell(REMOVE_AT_EOF);
        command
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Self {
            _remover: Supervisor::start(command)?,
            path,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A shell that waits for its standard input to end.
#[derive(Debug)]
struct Supervisor(Child);

impl Supervisor {
    fn start(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).spawn().map(Self)
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // Nothing to be done about an error here: the shell is gone or will be.
        let _ = self.0.wait();
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    // The word after the script is `$0`; arguments that follow are `$@`.
    command.args(["-c", script, "sh"]);
    command
}
