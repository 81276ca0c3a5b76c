//! Pictures of how cost grows, from the files of runs at several sizes.

use std::{fs, iter::zip, ops::Range, path::Path};

use anyhow::Context as _;
use plotters::prelude::{
    ChartBuilder, Color as _, IntoDrawingArea as _, IntoFont as _, IntoLogRange as _, LineSeries,
    PathElement, RGBColor, SVGBackend, Text,
};
use serde::Deserialize;

/// Where the pictures are shown from.
const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/plots");
/// Width and height, in pixels, of which the legend has so many at the top.
const SIZE: (u32, u32) = (720, 440);
const LEGEND: u32 = 90;
const MOST_LABELS: usize = 6;
/// Colours that can be told apart on white and on black, since a picture is not told which of them is behind it.
const GREY: RGBColor = RGBColor(0x73, 0x7d, 0x88);
const COLOURS: [RGBColor; 4] = [
    RGBColor(0x3b, 0x82, 0xf6),
    RGBColor(0xe0, 0x70, 0x1a),
    RGBColor(0x1a, 0x9e, 0x5c),
    RGBColor(0xa8, 0x55, 0xc7),
];

/// What is drawn: the name of the file, what grows, and the rows of the report that are its lines, with `N` for the number of
/// watchers. A row that no run has is left out.
const PLOTS: [Plot; 5] = [
    Plot {
        name: "get-and-claim",
        by: Growth::Sandboxes,
        cost: "milliseconds",
        rows: &[
            "get, random name, p50",
            "get, random name, p99",
            "claim, p50",
            "claim, p99",
        ],
    },
    Plot {
        name: "list",
        by: Growth::Sandboxes,
        cost: "milliseconds",
        rows: &["list all, JSON, p50", "page of 500, JSON, p50"],
    },
    Plot {
        name: "memory",
        by: Growth::Sandboxes,
        cost: "MB",
        rows: &["memory, before the load"],
    },
    Plot {
        name: "event",
        by: Growth::Watchers,
        cost: "milliseconds",
        rows: &[
            "claim's answer to event, every watcher, p50",
            "claim's answer to event, every watcher, p99",
            "claim to event, last watcher, p50",
            "claim to event, last watcher, p99",
        ],
    },
    Plot {
        name: "memory-of-watchers",
        by: Growth::Watchers,
        cost: "MB",
        rows: &["N watchers, memory", "at rest with N watchers, memory"],
    },
];

struct Plot {
    name: &'static str,
    by: Growth,
    /// The unit of its rows.
    cost: &'static str,
    rows: &'static [&'static str],
}

/// What is more of in each run of a kind, whose files begin with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    Sandboxes,
    Watchers,
}

/// What a run wrote.
#[derive(Deserialize)]
struct Run {
    options: Sizes,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Sizes {
    sandboxes: f64,
    watchers: f64,
}

#[derive(Deserialize)]
struct Row {
    what: String,
    measured: f64,
}

/// A row in runs of growing size.
struct Line {
    row: &'static str,
    /// Size and cost.
    points: Vec<(f64, f64)>,
}

/// Draws what the runs in `directory` say.
pub(crate) fn draw(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(PICTURES)?;
    for plot in &PLOTS {
        let runs = plot.by.runs(directory)?;
        let lines = plot.rows.iter().map(|row| plot.by.line(row, &runs));
        let lines: Vec<_> = lines.filter(|line| !line.points.is_empty()).collect();
        let path = Path::new(PICTURES).join(plot.name).with_extension("svg");
        if lines.is_empty() {
            eprintln!("nothing for {}", path.display());
            continue;
        }
        plot.draw(&lines, &path)
            .with_context(|| format!("{}", path.display()))?;
        eprintln!("{}", path.display());
    }
    Ok(())
}

impl Growth {
    fn name(self) -> &'static str {
        match self {
            Self::Sandboxes => "sandboxes",
            Self::Watchers => "watchers",
        }
    }

    fn size(self, run: &Run) -> f64 {
        match self {
            Self::Sandboxes => run.options.sandboxes,
            Self::Watchers => run.options.watchers,
        }
    }

    /// The runs of this kind, the smallest first.
    fn runs(self, directory: &Path) -> anyhow::Result<Vec<Run>> {
        let mut runs = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(&format!("{}-", self.name())) {
                let run: Run = serde_json::from_slice(&fs::read(&path)?)
                    .with_context(|| format!("{}", path.display()))?;
                runs.push(run);
            }
        }
        runs.sort_by(|one, other| self.size(one).total_cmp(&self.size(other)));
        Ok(runs)
    }

    fn line(self, row: &'static str, runs: &[Run]) -> Line {
        let point = |run: &Run| {
            let what = row.replace("N watchers", &format!("{} watchers", run.options.watchers));
            let found = run.rows.iter().find(|row| row.what == what)?;
            // Zero has no place on a logarithmic axis.
            (found.measured > 0.0).then_some((self.size(run), found.measured))
        };
        Line {
            row,
            points: runs.iter().filter_map(point).collect(),
        }
    }
}

impl Plot {
    fn draw(&self, lines: &[Line], path: &Path) -> anyhow::Result<()> {
        let text = ("sans-serif", 15).into_font().color(&GREY);
        let root = SVGBackend::new(path, SIZE).into_drawing_area();
        let (legend, area) = root.split_vertically(LEGEND);
        for (y, (line, colour)) in zip((20..).step_by(18), zip(lines, COLOURS)) {
            let stroke = PathElement::new([(88, y), (112, y)], colour.stroke_width(2));
            legend.draw(&stroke)?;
            legend.draw(&Text::new(line.row, (120, y - 5), &text))?;
        }
        let points = || lines.iter().flat_map(|line| &line.points);
        let (sizes, costs) = (points().map(|it| it.0), points().map(|it| it.1));
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(decades(sizes).log_scale(), decades(costs).log_scale())?;
        chart
            .configure_mesh()
            .axis_style(GREY)
            .bold_line_style(GREY.mix(0.4))
            .light_line_style(GREY.mix(0.12))
            .label_style(text)
            .x_labels(MOST_LABELS)
            .y_labels(MOST_LABELS)
            .x_label_formatter(&power_of_ten)
            .y_label_formatter(&power_of_ten)
            .x_desc(self.by.name())
            .y_desc(self.cost)
            .draw()?;
        for (line, colour) in zip(lines, COLOURS) {
            let style = colour.filled().stroke_width(2);
            let series = LineSeries::new(line.points.iter().copied(), style).point_size(4);
            chart.draw_series(series)?;
        }
        root.present()?;
        Ok(())
    }
}

/// The powers of ten around the values, and a little more, so that both ends have a label.
fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let around = (f64::INFINITY, 0.0_f64);
    let (least, most) = values.fold(around, |(least, most), it| (it.min(least), it.max(most)));
    let low = least.log10().floor();
    let high = most.log10().ceil().max(low + 1.0);
    0.9 * 10_f64.powf(low)..1.1 * 10_f64.powf(high)
}

fn power_of_ten(value: &f64) -> String {
    match *value {
        value if value > 0.9e6 => format!("{:.0} M", value / 1e6),
        value if value > 0.9e3 => format!("{:.0} k", value / 1e3),
        // Multiplied by ten again and again, it is not exact.
        value => format!("{}", (value * 1e6).round() / 1e6),
    }
}
