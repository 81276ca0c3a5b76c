//! Two revisions beside each other, from the files of runs that took turns.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context as _;
use serde::Deserialize;

/// What a run wrote.
#[derive(Deserialize)]
struct Run {
    revision: String,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    what: String,
    measured: f64,
    unit: String,
}

/// All runs of one revision.
struct Side {
    revision: String,
    runs: Vec<Run>,
}

/// Prints each number of the new revision beside the old one's: medians, their ratio, and how likely a difference like this is
/// if there is none.
pub(crate) fn print(directory: &Path) -> anyhow::Result<()> {
    let (old, new) = (Side::read(directory, "old")?, Side::read(directory, "new")?);
    println!("old {}, {} runs", old.revision, old.runs.len());
    println!("new {}, {} runs", new.revision, new.runs.len());
    println!(
        "{:40}  {:>10}  {:>10}  {:>7}  {:>6}",
        "what", "old", "new", "new/old", "p"
    );
    let (old, new) = (old.numbers(), new.numbers());
    for (what, unit, before) in &old {
        let Some((_, _, after)) = new.iter().find(|(known, ..)| known == what) else {
            continue;
        };
        let (was, is) = (median(before), median(after));
        println!(
            "{what:40}  {was:>10.3}  {is:>10.3}  {:>7.3}  {:>6.3}  {unit}",
            is / was,
            p_value(before, after)
        );
    }
    Ok(())
}

impl Side {
    fn read(directory: &Path, side: &str) -> anyhow::Result<Self> {
        let mut runs = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(&format!("{side}-")) {
                let run: Run = serde_json::from_slice(&fs::read(&path)?)
                    .with_context(|| format!("{}", path.display()))?;
                runs.push(run);
            }
        }
        let first = runs.first().with_context(|| format!("no runs of {side}"))?;
        Ok(Self {
            revision: first.revision.clone(),
            runs,
        })
    }

    /// What was measured, its unit, and the number of each run; in the order of the table.
    fn numbers(&self) -> Vec<(&str, &str, Vec<f64>)> {
        let rows = || self.runs.iter().flat_map(|run| &run.rows);
        let mut by_what = BTreeMap::<&str, Vec<f64>>::new();
        for row in rows() {
            by_what.entry(&row.what).or_default().push(row.measured);
        }
        let ordered = rows().filter_map(|row| {
            let numbers = by_what.remove(row.what.as_str())?;
            Some((row.what.as_str(), row.unit.as_str(), numbers))
        });
        ordered.collect()
    }
}

fn median(numbers: &[f64]) -> f64 {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        0 => f64::midpoint(numbers[middle - 1], numbers[middle]),
        _ => numbers[middle],
    }
}

/// The two-sided Mann-Whitney test, exact for numbers that are all different: it asks for no shape of their distribution, which
/// latencies have none of.
fn p_value(one: &[f64], other: &[f64]) -> f64 {
    let wins = |a: f64| {
        let beats = |b: f64| f64::from(u8::from(a > b)) + f64::from(u8::from(a == b)) / 2.0;
        other.iter().map(|b| beats(*b)).sum::<f64>()
    };
    let u: f64 = one.iter().map(|a| wins(*a)).sum();
    let ways = ways(one.len(), other.len());
    let all: f64 = ways.iter().sum();
    let at_most = |most: f64| {
        let counted = ways.iter().zip(0_u32..);
        let counted = counted.filter(|(_, u)| f64::from(*u) <= most);
        counted.map(|(ways, _)| ways).sum::<f64>() / all
    };
    let most = f64::from(u32::try_from(ways.len() - 1).unwrap_or(u32::MAX));
    (2.0 * at_most(u.min(most - u))).min(1.0)
}

/// In how many orders of `n` and `m` numbers the first win so many comparisons, by how many.
fn ways(n: usize, m: usize) -> Vec<f64> {
    let mut rows = vec![vec![vec![1.0]; m + 1]; n + 1];
    for i in 1..=n {
        for j in 1..=m {
            let mut ways = vec![0.0; i * j + 1];
            // The largest is one of the first, and beats all others, or one of the others, and beats none.
            for (u, count) in rows[i - 1][j].iter().enumerate() {
                ways[u + j] += count;
            }
            for (u, count) in rows[i][j - 1].iter().enumerate() {
                ways[u] += count;
            }
            rows[i][j] = ways;
        }
    }
    rows.swap_remove(n).swap_remove(m)
}
