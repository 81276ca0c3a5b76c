//! The table and the file.

use std::{
    fmt,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;
use serde_json::json;

use crate::{latency::Latencies, options::Options, usage::Memory};

/// What was measured.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

/// One number.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// What it is; the same in every run, so that runs can be compared.
    what: String,
    measured: f64,
    unit: Unit,
    goal: Option<Goal>,
    /// The same as a server gives it that only sends bytes, or a node that is asked directly.
    ceiling: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    #[serde(rename = "µs")]
    Microseconds,
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "B")]
    Bytes,
    #[serde(rename = "MB")]
    Megabytes,
    #[serde(rename = "%")]
    Percent,
    #[serde(rename = "/s")]
    PerSecond,
    #[serde(rename = "×")]
    Times,
    #[serde(rename = "kB")]
    Kilobytes,
    /// How many.
    #[serde(rename = "")]
    Count,
}

/// The number to reach, in the row's unit.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

/// For latencies that are measured only.
pub(crate) const NO_GOALS: [Option<Goal>; 2] = [None, None];

impl Report {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn row(&mut self, what: &str, measured: f64, unit: Unit) -> &mut Row {
        self.rows.push(Row {
            what: what.to_owned(),
            measured,
            unit,
            goal: None,
            ceiling: None,
        });
        self.rows.last_mut().expect("a row was added")
    }

    pub(crate) fn time(&mut self, what: &str, time: Duration) -> &mut Row {
        self.row(what, milliseconds(time), Unit::Milliseconds)
    }

    /// Two rows, p50 and p99, each with its goal.
    pub(crate) fn latencies(
        &mut self,
        what: &str,
        latencies: &Latencies,
        goals: [Option<Goal>; 2],
        ceiling: Option<&Latencies>,
    ) {
        for (percent, goal) in [50, 99].into_iter().zip(goals) {
            let what = format!("{what}, p{percent}");
            let row = self.time(&what, latencies.percentile(percent));
            row.goal = goal;
            row.ceiling = ceiling.map(|ceiling| milliseconds(ceiling.percentile(percent)));
        }
    }

    pub(crate) fn memory(&mut self, what: &str, memory: Memory, goal: Option<Goal>) {
        self.row(what, megabytes(memory.resident), Unit::Megabytes)
            .goal = goal;
        let peak = format!("{what}, peak so far");
        self.row(&peak, megabytes(memory.peak), Unit::Megabytes);
    }

    /// Writes the numbers, with all that is needed to get them again.
    pub(crate) fn write(&self, options: &Options) -> anyhow::Result<()> {
        let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = model
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let document = json!({
            "revision": git(&["rev-parse", "HEAD"]),
            "clean": git(&["status", "--porcelain"]).is_some_and(|changed| changed.is_empty()),
            "unixSeconds": SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
            "cpus": std::thread::available_parallelism()?,
            "cpuModel": model.map(|model| model.trim_matches([' ', '\t', ':'])),
            "options": options,
            "rows": self.rows,
        });
        if let Some(directory) = options.output.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(&options.output, format!("{document:#}\n"))?;
        eprintln!("numbers in {}", options.output.display());
        Ok(())
    }
}

impl Row {
    pub(crate) fn goal(&mut self, goal: Goal) -> &mut Self {
        self.goal = Some(goal);
        self
    }

    pub(crate) fn ceiling(&mut self, ceiling: f64) -> &mut Self {
        self.ceiling = Some(ceiling);
        self
    }

    fn cells(&self) -> [String; 5] {
        let show = |number: f64| match self.unit {
            // Of what is counted one more or less is a difference.
            Unit::Count => format!("{number:.0}"),
            unit => format!("{} {unit}", significant(number)),
        };
        let (goal, met) = match self.goal {
            None => (String::new(), ""),
            Some(Goal::AtMost(goal)) => (format!("≤ {}", show(goal)), yes(self.measured <= goal)),
            Some(Goal::AtLeast(goal)) => (format!("≥ {}", show(goal)), yes(self.measured >= goal)),
        };
        let ceiling = self.ceiling.map(show).unwrap_or_default();
        [
            self.what.clone(),
            show(self.measured),
            goal,
            ceiling,
            met.to_owned(),
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["what", "measured", "goal", "ceiling", "met"].map(str::to_owned);
        let lines: Vec<_> = std::iter::once(head)
            .chain(self.rows.iter().map(Row::cells))
            .collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
        let widths = [0, 1, 2, 3].map(|column| width(column).unwrap_or(0));
        for [what, measured, goal, ceiling, met] in &lines {
            let [w, m, g, c] = widths;
            let line = format!("{what:w$}  {measured:>m$}  {goal:>g$}  {ceiling:>c$}  {met}");
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Microseconds => "µs",
            Self::Milliseconds => "ms",
            Self::Bytes => "B",
            Self::Megabytes => "MB",
            Self::Percent => "%",
            Self::PerSecond => "/s",
            Self::Times => "×",
            Self::Kilobytes => "kB",
            Self::Count => "",
        })
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn yes(met: bool) -> &'static str {
    if met { "yes" } else { "NO" }
}

/// Three digits, as no more of them come again in the next run.
fn significant(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
