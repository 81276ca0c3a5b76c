//! What a process has used, as the kernel counts it.

use std::{fs, io, path::Path, time::Duration};

use anyhow::Context as _;

/// A running process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pid: u32,
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    pub(crate) peak: u64,
}

impl Usage {
    /// This process.
    pub(crate) fn own() -> Self {
        Self {
            pid: std::process::id(),
        }
    }

    /// The process that runs `binary` with `flag` among its arguments.
    ///
    /// Asked of the kernel, because our child is the shell that guards it.
    pub(crate) fn find(binary: &Path, flag: &str) -> anyhow::Result<Self> {
        let binary = binary.canonicalize()?;
        let pids = fs::read_dir("/proc")?.flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let found = pids.find(|pid: &u32| {
            let runs = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == binary);
            let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline"));
            runs && arguments.is_ok_and(|arguments| arguments.split('\0').any(|it| it == flag))
        });
        let pid = found.with_context(|| format!("no process of {} {flag}", binary.display()))?;
        Ok(Self { pid })
    }

    pub(crate) fn pid(self) -> u32 {
        self.pid
    }

    /// Time on a CPU so far, in user and kernel, of all threads that are still there: those of the runtime stay.
    pub(crate) fn cpu(self) -> anyhow::Result<Duration> {
        let mut total = Duration::ZERO;
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid))?.flatten() {
            // A thread may end between the two looks.
            let Ok(schedstat) = fs::read_to_string(thread.path().join("schedstat")) else {
                continue;
            };
            let nanoseconds = schedstat.split(' ').next().unwrap_or_default().parse()?;
            total += Duration::from_nanos(nanoseconds);
        }
        Ok(total)
    }

    /// Makes the peak of [`Self::memory`] begin anew.
    ///
    /// Source: `clear_refs` in proc(5).
    pub(crate) fn forget_peak(self) -> io::Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.pid), "5")
    }

    pub(crate) fn memory(self) -> anyhow::Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let bytes = |field: &str| -> anyhow::Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let number = line.and_then(|line| line.split_whitespace().next());
            let kibibytes: u64 = number.with_context(|| format!("no {field}"))?.parse()?;
            Ok(kibibytes * 1_024)
        };
        Ok(Memory {
            resident: bytes("VmRSS:")?,
            peak: bytes("VmHWM:")?,
        })
    }
}
