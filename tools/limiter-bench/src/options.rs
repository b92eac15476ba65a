//! The command line: the workloads, the contenders and the output.

use std::fs;

use limiter_instructions::Counts;

use crate::contender::{Contender, Mode};
use crate::environment::Environment;
use crate::exact;
use crate::machine::Machine;
use crate::memory::{self, Bytes};
use crate::report::{self, Report};
use crate::scaling;
use crate::series::{Series, Shared};
use crate::targets::{TARGETS, Target};
use crate::workload::{Pace, WORKLOADS, Workload};

pub(crate) const USAGE: &str = "limiter-bench [--json] [--quick] [--only <workload>]… [--list] [--counts <file>] [--scaling] [--redis-cell <module>]";

/// Not a workload, but measured with them.
const MEMORY: &str = "memory";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    json: bool,
    quick: bool,
    list: bool,
    scaling: bool,
    only: Vec<String>,
    /// The path of the module redis-cell, which is a contender then.
    cell: Option<String>,
    /// The file with the instructions per decision.
    counts: Option<String>,
}

impl Options {
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => options.json = true,
                "--quick" => options.quick = true,
                "--list" => options.list = true,
                "--scaling" => options.scaling = true,
                "--redis-cell" => {
                    options.cell = Some(args.next().ok_or("--redis-cell expects a module")?.clone());
                }
                "--counts" => options.counts = Some(args.next().ok_or("--counts expects a file")?.clone()),
                "--only" => options
                    .only
                    .push(args.next().ok_or("--only expects a workload")?.clone()),
                other => return Err(format!("unexpected `{other}`")),
            }
        }
        let known = |name: &&String| *name == MEMORY || Workload::named(name).is_some();
        match options.only.iter().find(|name| !known(name)) {
            Some(unknown) => Err(format!("no workload `{unknown}`; --list names them")),
            None => Ok(options),
        }
    }

    /// Measures and prints the figures; a full run also writes them to files.
    pub(crate) fn run(&self) -> Result<(), String> {
        if self.scaling {
            return scaling::run(self.pace());
        }
        let chosen = self.chosen();
        if self.list {
            for (workload, contenders) in chosen {
                let names: Vec<_> = contenders.iter().map(|contender| contender.name()).collect();
                println!(
                    "{:<20} {}: {}",
                    workload.name,
                    workload.description,
                    names.join(", ")
                );
            }
            println!("{MEMORY:<20} bytes a permit in Redis, bytes a key in process");
            return Ok(());
        }
        let counts = self.counts.as_deref().map(read_counts).transpose()?;
        let environment = Environment::with_cell(self.cell.clone());
        let machine = Machine::detect(&environment);
        eprintln!("{}", machine.describe());
        let mut all = Vec::new();
        for (workload, contenders) in chosen {
            let series = with_shared(
                measure(workload, &contenders, &environment, self.pace()),
                &all,
                &environment,
            );
            if self.json {
                series
                    .iter()
                    .for_each(|series| println!("{}", report::json(series)));
            }
            all.extend(series);
        }
        let report = Report {
            machine,
            memory: self.memory(&environment),
            series: all,
            counts,
        };
        match self.json {
            true => eprint!("{}", report.verdicts()),
            false => print!("{}", report.text()),
        }
        if !self.quick && self.only.is_empty() {
            report
                .write()
                .map_err(|error| format!("the report cannot be written: {error}"))?;
        }
        Ok(())
    }

    fn pace(&self) -> Pace {
        if self.quick { Pace::QUICK } else { Pace::FULL }
    }

    /// Returns the selected workloads. A quick run of all workloads is reduced to those with a
    /// target, and to the contenders of the targets.
    fn chosen(&self) -> Vec<(&'static Workload, Vec<Contender>)> {
        let contenders = |workload: &'static Workload| {
            let targets = TARGETS.iter().filter(|target| target.workload == workload.name);
            let needed: Vec<Contender> = targets.flat_map(Target::needs).collect();
            let wanted = |contender: &Contender| {
                (!self.quick || !self.only.is_empty() || needed.contains(contender))
                    && (*contender != Contender::RedisCell || self.cell.is_some())
            };
            let all = workload.contenders.iter().copied();
            (workload, all.filter(wanted).collect::<Vec<_>>())
        };
        let named =
            |workload: &&Workload| self.only.is_empty() || self.only.iter().any(|name| name == workload.name);
        let chosen = WORKLOADS.iter().filter(named).map(contenders);
        chosen.filter(|(_, contenders)| !contenders.is_empty()).collect()
    }

    fn memory(&self, environment: &Environment) -> Vec<Bytes> {
        match (&self.only[..], self.quick) {
            (only, _) if !only.is_empty() && !only.iter().any(|name| name == MEMORY) => Vec::new(),
            (_, true) => memory::measure(environment, &[Contender::Ours, Contender::Governor]),
            (_, false) => memory::measure(
                environment,
                &[Contender::Ours, Contender::Governor, Contender::TrypemaLocal],
            ),
        }
    }
}

fn read_counts(file: &str) -> Result<Counts, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?;
    Counts::parse(&text).map_err(|error| format!("{file}: {error}"))
}

/// Rounds in which every contender has a turn, each round beginning with another one.
fn measure(
    workload: &'static Workload,
    contenders: &[Contender],
    environment: &Environment,
    pace: Pace,
) -> Vec<Series> {
    eprintln!("{}: {}", workload.name, workload.description);
    let mut series: Vec<Series> = contenders
        .iter()
        .map(|&contender| Series {
            workload,
            contender,
            turns: Vec::new(),
            shared: None,
        })
        .collect();
    for round in 0..pace.rounds {
        for turn in 0..series.len() {
            let place = (round + turn) % contenders.len();
            let sample = workload.turn(contenders[place], environment, pace);
            series[place].turns.push(sample);
        }
    }
    series
}

/// Adds the admissions of four processes, which are measured once for each contender and mode.
fn with_shared(mut series: Vec<Series>, before: &[Series], environment: &Environment) -> Vec<Series> {
    for series in &mut series {
        let Some(mode) = series.workload.shared_mode() else {
            continue;
        };
        let mode = if series.contender == Contender::Ours {
            mode
        } else {
            Mode::Bucket
        };
        let known = before.iter().find(|other| {
            let same = other.contender == series.contender && other.shared.is_some();
            same && (series.contender != Contender::Ours || other.workload.shared_mode() == Some(mode))
        });
        let measured: Option<Shared> = known.and_then(|other| other.shared);
        series.shared = measured.or_else(|| exact::shared(series.contender, mode, environment));
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Options, String> {
        Options::parse(&args.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn unknown_workload_is_rejected() {
        assert!(parse("--only strict-10k-46").is_err_and(|message| message.contains("strict-10k-46")));
        assert!(parse("--only").is_err() && parse("--fast").is_err());
        assert!(parse("--only local-1 --only memory --quick").is_ok());
    }

    #[test]
    fn quick_run_measures_workloads_with_targets() {
        let chosen = parse("--quick").expect("valid").chosen();
        let named = |name: &str| chosen.iter().find(|(workload, _)| workload.name == name);
        assert!(named("zipf-64").is_none());
        let (_, contenders) = named("strict-10k-64").expect("it has targets");
        assert_eq!(
            contenders[..],
            [Contender::Ours, Contender::Incrby, Contender::ScriptMultiplexed]
        );
    }
}
