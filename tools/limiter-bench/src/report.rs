//! The report that is printed and written to files.

mod markdown;
mod plot;

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use limiter_instructions::{Counts, PATHS};

use crate::machine::Machine;
use crate::memory::Bytes;
use crate::series::Series;
use crate::targets::{self, TARGETS, Verdict};

/// All figures of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) series: Vec<Series>,
    pub(crate) memory: Vec<Bytes>,
    /// Instructions per decision, if they were counted.
    pub(crate) counts: Option<Counts>,
}

/// Returns a row for programs.
pub(crate) fn json(series: &Series) -> String {
    let number = |figure: Option<f64>| figure.map_or("null".to_owned(), |figure| format!("{figure:.3}"));
    let count = |figure: Option<u64>| figure.map_or("null".to_owned(), |figure| figure.to_string());
    format!(
        "{{\"workload\":\"{}\",\"contender\":\"{}\",\"decisions_per_second\":{:.0},\"p50_us\":{:.3},\"p99_us\":{:.3},\
         \"server_us_per_decision\":{},\"client_us_per_decision\":{},\"admitted\":{},\"allowed\":{}}}",
        series.workload.name,
        series.contender.name(),
        series.median(|sample| sample.decisions_per_second),
        series.median(|sample| sample.p50_us),
        series.median(|sample| sample.p99_us),
        number(series.known(|sample| sample.server_us)),
        number(series.known(|sample| sample.client_us)),
        count(series.shared.map(|shared| shared.admitted)),
        count(series.shared.map(|shared| shared.allowed)),
    )
}

/// Returns a row for people, in the order of [`COLUMNS`].
fn cells(series: &Series, report: &Report) -> [String; COLUMNS.len()] {
    let unknown = || "–".to_owned();
    let reference = report.series.iter().find(|other| {
        other.workload.name == series.workload.name && other.contender == series.workload.reference()
    });
    let ratio = reference.map(|reference| series.ratio(reference, |sample| sample.decisions_per_second));
    [
        series.contender.name().to_owned(),
        thousands(series.median(|sample| sample.decisions_per_second)),
        format!(
            "{:.0}",
            series.spread(|sample| sample.decisions_per_second) * 50.0
        ),
        ratio.map_or_else(unknown, |ratio| format!("{ratio:.2}")),
        micros(series.median(|sample| sample.p50_us)),
        micros(series.median(|sample| sample.p99_us)),
        series
            .known(|sample| sample.server_us)
            .map_or_else(unknown, micros),
        series
            .known(|sample| sample.client_us)
            .map_or_else(unknown, micros),
        series.shared.map_or_else(unknown, |shared| {
            format!("{:.2}", shared.admitted as f64 / shared.allowed as f64)
        }),
        report.instructions(series).map_or_else(unknown, thousands),
    ]
}

const COLUMNS: [&str; 10] = [
    "contender",
    "decisions/s",
    "± %",
    "ratio",
    "p50 µs",
    "p99 µs",
    "server µs",
    "client µs",
    "admitted",
    "instructions",
];

impl Report {
    /// Returns the table for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n", self.machine.describe());
        let mut workload = "";
        for series in &self.series {
            if series.workload.name != workload {
                workload = series.workload.name;
                let reference = series.workload.reference().name();
                let _ = writeln!(
                    text,
                    "\n{workload}: {}; ratio to {reference}",
                    series.workload.description
                );
                text.push_str(&line(&COLUMNS));
            }
            text.push_str(&line(&cells(series, self)));
        }
        text.push('\n');
        for (name, work, count) in self.counted() {
            let _ = writeln!(text, "{name:<36} {:>8} instructions  {work}", thousands(count));
        }
        text.push_str(&self.verdicts());
        text
    }

    /// Returns the targets alone.
    pub(crate) fn verdicts(&self) -> String {
        let mut text = String::new();
        for figure in &self.memory {
            let _ = writeln!(
                text,
                "{:<48} {:<14} {:.1} bytes",
                figure.description,
                figure.contender.name(),
                figure.each
            );
        }
        for Verdict {
            workload,
            target,
            reached,
            met,
        } in self.judged()
        {
            let met = if met { "met" } else { "not met" };
            let _ = writeln!(text, "{workload:<48} {target:<34} {reached:>12}  {met}");
        }
        text
    }

    /// Returns the counted paths: name, work, instructions per decision.
    fn counted(&self) -> impl Iterator<Item = (&'static str, &'static str, f64)> {
        let counts = self.counts.iter();
        counts.flat_map(|counts| {
            let counted =
                |path: &limiter_instructions::Path| Some((path.name, path.work, counts.get(path.name)?));
            PATHS.iter().filter_map(counted)
        })
    }

    /// Returns the instructions of the path that does the same work as this row.
    fn instructions(&self, series: &Series) -> Option<f64> {
        let row = (series.workload.name, series.contender.name());
        let path = PATHS.iter().find(|path| path.timed_as == Some(row))?;
        self.counts.as_ref()?.get(path.name)
    }

    fn judged(&self) -> Vec<Verdict> {
        let speed = TARGETS.iter().filter_map(|target| target.verdict(&self.series));
        let instructions = self.counts.iter().flat_map(targets::instructions);
        speed
            .chain(instructions)
            .chain(targets::memory(&self.memory))
            .collect()
    }

    /// BENCHMARKS.md, its plots and the figures, at the root of the project.
    pub(crate) fn write(&self) -> io::Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap_or(Path::new("."));
        let plots = root.join("benchmarks");
        fs::create_dir_all(&plots)?;
        for (name, plot) in plot::all(&self.series) {
            fs::write(plots.join(name), plot)?;
        }
        fs::write(plots.join("figures.md"), markdown::figures(self))?;
        fs::write(root.join("BENCHMARKS.md"), markdown::page(self))
    }
}

fn line<C: AsRef<str>>(cells: &[C; COLUMNS.len()]) -> String {
    let widths = [20, 13, 6, 8, 10, 10, 11, 11, 10, 14];
    let mut line = String::new();
    for (place, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let cell = cell.as_ref();
        let _ = match place {
            0 => write!(line, "  {cell:<width$}"),
            _ => write!(line, "{cell:>width$}"),
        };
    }
    line + "\n"
}

fn micros(figure: f64) -> String {
    match figure {
        f if f < 10.0 => format!("{f:.3}"),
        f if f < 1_000.0 => format!("{f:.1}"),
        f => format!("{f:.0}"),
    }
}

fn thousands(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Contender;
    use crate::sample::Sample;
    use crate::series::Shared;
    use crate::workload::WORKLOADS;

    fn report() -> Report {
        let series = WORKLOADS.iter().flat_map(|workload| {
            let series = |(place, &contender): (usize, &Contender)| Series {
                workload,
                contender,
                turns: vec![Sample {
                    decisions_per_second: 1e6 / (place + 1) as f64,
                    p50_us: 1.0,
                    p99_us: 2.0,
                    server_us: None,
                    client_us: Some(0.5),
                }],
                shared: Some(Shared {
                    admitted: 100,
                    allowed: 100,
                }),
            };
            workload.contenders.iter().enumerate().map(series)
        });
        let unknown = String::new;
        Report {
            machine: Machine {
                processor: unknown(),
                cores: 2,
                kernel: unknown(),
                redis: unknown(),
                compiler: unknown(),
                load: unknown(),
            },
            series: series.collect(),
            memory: vec![Bytes {
                description: "a key".into(),
                contender: Contender::Ours,
                each: 60.0,
            }],
            counts: Some(counts()),
        }
    }

    fn counts() -> Counts {
        let conditions = "compiler\tc\nprocessor\tp\nvalgrind\tv\n".to_owned();
        let lines = PATHS.iter().map(|path| format!("{}\t1234.5\n", path.name));
        Counts::parse(&(conditions + &lines.collect::<String>())).expect("the text is well-formed")
    }

    #[test]
    fn page_has_instructions_of_paths_and_equivalent_rows() {
        let page = markdown::figures(&report());
        for path in PATHS {
            let row = format!("| `{}` | {} | 1,234 |", path.name, path.work);
            assert!(page.contains(&row), "{row}");
        }
        let rows = page
            .lines()
            .filter(|line| line.ends_with(" | 1,234 |") && !line.contains("::"));
        let timed = PATHS.iter().filter(|path| path.timed_as.is_some());
        assert_eq!(rows.count(), timed.count());
    }

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!(thousands(294_000.4), "294,000");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(thousands(12.0), "12");
    }

    #[test]
    fn page_has_all_workloads_and_targets() {
        let figures = markdown::figures(&report());
        for workload in WORKLOADS {
            assert!(
                figures.contains(&format!("`{}`: ", workload.name)),
                "{}",
                workload.name
            );
        }
        let page = markdown::page(&report());
        let judged = page.lines().filter(|line| line.ends_with("met |")).count();
        let server_time_is_unknown = 4;
        let instructions = targets::instructions(&counts()).len();
        assert_eq!(judged, TARGETS.len() + instructions - server_time_is_unknown);
    }

    #[test]
    fn plot_has_a_bar_for_each_row() {
        let report = report();
        let plots = plot::all(&report.series);
        let bars: usize = plots.iter().map(|(_, svg)| svg.matches("fill=\"#").count()).sum();
        assert_eq!(bars, report.series.len());
        for (name, svg) in plots {
            assert!(svg.len() < 40_000 && svg.ends_with("</svg>\n"), "{name}");
        }
    }
}
