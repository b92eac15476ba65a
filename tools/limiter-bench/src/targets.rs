//! The targets of the figures. A missed target fails nothing; the table shows it.

use limiter_instructions::Counts;

use crate::contender::Contender::{
    self, Bare, Governor, Incrby, Ours, RedisCell, ScriptMultiplexed, TowerGovernor,
};
use crate::memory::Bytes;
use crate::sample::Sample;
use crate::series::Series;

/// One target.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) workload: &'static str,
    measure: Measure,
}

/// A figure with its lower or upper bound.
#[derive(Clone, Copy, Debug)]
enum Measure {
    /// Decisions a second, of the other's.
    Throughput(Contender, f64),
    /// The median call, of the other's.
    Latency(Contender, f64),
    /// Processor time of the server, in microseconds a decision.
    ServerTime(f64),
    /// Processor time of the server per decision, of that of another workload.
    ServerTimeOf(&'static str, f64),
    /// Processor time of the callers, in nanoseconds a decision.
    ClientTime(f64),
    /// Time a decision, of the other's.
    Time(Contender, f64),
    /// Processor time of a request beyond that without a layer, of the other's.
    AddedTime(Contender, f64),
}

const fn target(workload: &'static str, measure: Measure) -> Target {
    Target { workload, measure }
}

pub(crate) const TARGETS: &[Target] = &[
    target("strict-10k-64", Measure::Throughput(Incrby, 0.6)),
    target("strict-10k-64", Measure::Throughput(RedisCell, 1.0)),
    target("strict-10k-64", Measure::Throughput(ScriptMultiplexed, 2.0)),
    target("strict-10k-64", Measure::ServerTime(4.5)),
    target("strict-10k-512", Measure::Throughput(Incrby, 0.65)),
    target("strict-10k-512", Measure::Throughput(RedisCell, 1.3)),
    target("strict-10k-512", Measure::Throughput(ScriptMultiplexed, 2.5)),
    target("single-1", Measure::Latency(Incrby, 1.5)),
    target("hot-512", Measure::Throughput(Incrby, 1.7)),
    target("hot-denied-64", Measure::Throughput(Incrby, 20.0)),
    target("hot-denied-64", Measure::ClientTime(250.0)),
    target("lease-hot-64", Measure::Throughput(Incrby, 10.0)),
    target("window-10k-64", Measure::Throughput(Incrby, 0.47)),
    target("window-10k-64", Measure::ServerTime(7.5)),
    target("multi-10k-64", Measure::Throughput(Incrby, 0.45)),
    target("multi-10k-64", Measure::ServerTimeOf("strict-10k-64", 2.0)),
    target("cluster-10k-64", Measure::Throughput(Incrby, 0.62)),
    target("cluster-10k-64", Measure::ServerTime(11.0)),
    target("local-1", Measure::Time(Governor, 0.9)),
    target("local-1-2t", Measure::Time(Governor, 1.0)),
    target("local-10k", Measure::Time(Governor, 0.8)),
    target("local-10k-2t", Measure::Time(Governor, 0.8)),
    target("local-1m", Measure::Time(Governor, 0.8)),
    target("local-1m-2t", Measure::Time(Governor, 0.8)),
    target("layer-local", Measure::AddedTime(TowerGovernor, 0.8)),
    target("layer-axum", Measure::AddedTime(TowerGovernor, 1.0)),
    target("layer-axum-headers", Measure::AddedTime(TowerGovernor, 1.15)),
];

/// A permit of a window in Redis, in bytes; a key in process: no more than governor's.
const WINDOW_BYTES: f64 = 16.0;

/// A measured figure and its target.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) workload: String,
    pub(crate) target: String,
    pub(crate) reached: String,
    pub(crate) met: bool,
}

impl Target {
    /// The contenders that it needs.
    pub(crate) fn needs(&self) -> Vec<Contender> {
        match self.measure {
            Measure::Throughput(other, _) | Measure::Latency(other, _) | Measure::Time(other, _) => {
                vec![Ours, other]
            }
            Measure::AddedTime(other, _) => vec![Ours, other, Bare],
            Measure::ServerTime(_) | Measure::ServerTimeOf(..) | Measure::ClientTime(_) => vec![Ours],
        }
    }

    /// `None` when not all that it needs was measured.
    pub(crate) fn verdict(&self, all: &[Series]) -> Option<Verdict> {
        let of = |contender| {
            let wanted =
                |series: &&Series| series.workload.name == self.workload && series.contender == contender;
            all.iter().find(wanted)
        };
        let (ours, rate) = (of(Ours)?, |sample: &Sample| sample.decisions_per_second);
        let verdict = |target: String, reached: String, met| Verdict {
            workload: self.workload.to_owned(),
            target,
            reached,
            met,
        };
        Some(match self.measure {
            Measure::Throughput(other, least) => {
                let ratio = ours.ratio(of(other)?, rate);
                verdict(
                    format!("≥ {least} × {}", other.name()),
                    format!("{ratio:.2} ×"),
                    ratio >= least,
                )
            }
            Measure::Latency(other, most) => {
                let ratio = ours.ratio(of(other)?, |sample| sample.p50_us);
                let target = format!("median call ≤ {most} × {}", other.name());
                verdict(target, format!("{ratio:.2} ×"), ratio <= most)
            }
            Measure::ServerTime(most) => {
                let spent = ours.known(|sample| sample.server_us)?;
                verdict(
                    format!("server ≤ {most} µs a decision"),
                    format!("{spent:.2} µs"),
                    spent <= most,
                )
            }
            Measure::ServerTimeOf(workload, most) => {
                let other = all
                    .iter()
                    .find(|series| series.workload.name == workload && series.contender == Ours)?;
                let spent = |series: &Series| series.known(|sample| sample.server_us);
                let ratio = spent(ours)? / spent(other)?;
                verdict(
                    format!("server ≤ {most} × that of {workload}"),
                    format!("{ratio:.2} ×"),
                    ratio <= most,
                )
            }
            Measure::ClientTime(most) => {
                let spent = ours.known(|sample| sample.client_us)? * 1_000.0;
                verdict(
                    format!("client ≤ {most} ns a decision"),
                    format!("{spent:.0} ns"),
                    spent <= most,
                )
            }
            Measure::Time(other, most) => {
                let ratio = of(other)?.ratio(ours, rate);
                verdict(
                    format!("time ≤ {most} × {}", other.name()),
                    format!("{ratio:.2} ×"),
                    ratio <= most,
                )
            }
            Measure::AddedTime(other, most) => {
                let (other, bare) = (of(other)?, of(Bare)?);
                let added = |series: &Series| added_micros(series, bare);
                let ratio = added(ours)? / added(other)?;
                let target = format!("added time ≤ {most} × {}", other.contender.name());
                verdict(target, format!("{ratio:.2} ×"), ratio <= most)
            }
        })
    }
}

/// Returns the processor time that a layer adds to a request. Other load on the machine disturbs it
/// less than the elapsed time.
fn added_micros(with: &Series, without: &Series) -> Option<f64> {
    let turns = with.turns.iter().zip(&without.turns);
    let added: Option<Vec<f64>> = turns
        .map(|(with, without)| Some(with.client_us? - without.client_us?))
        .collect();
    Some(crate::sample::median(added?))
}

/// Targets of instructions: at most this factor of the instructions of another path.
const INSTRUCTIONS: [(&str, f64, &str); 3] = [
    ("in_process::three_limits", 2.2, "in_process::one_key"),
    ("annotated::no_key", 1.15, "annotated::no_key_by_hand"),
    ("annotated::formatted_key", 1.2, "annotated::escaped_key_by_hand"),
];

/// Compares the counted instructions with their targets.
pub(crate) fn instructions(counts: &Counts) -> Vec<Verdict> {
    let verdict = |(path, most, other): (&str, f64, &str)| {
        let ratio = counts.get(path)? / counts.get(other)?;
        Some(Verdict {
            workload: path.to_owned(),
            target: format!("instructions ≤ {most} × {other}"),
            reached: format!("{ratio:.2} ×"),
            met: ratio <= most,
        })
    };
    INSTRUCTIONS.into_iter().filter_map(verdict).collect()
}

/// Returns the figures of memory beside their targets.
pub(crate) fn memory(figures: &[Bytes]) -> Vec<Verdict> {
    let governors = figures
        .iter()
        .find(|figure| figure.contender == Governor)
        .map(|figure| figure.each);
    let ours = figures.iter().filter(|figure| figure.contender == Ours);
    ours.filter_map(|figure| {
        let (limit, target) = match figure.description.contains("window") {
            true => (WINDOW_BYTES, format!("≤ {WINDOW_BYTES} bytes")),
            false => (governors?, format!("≤ {:.0} bytes, governor's", governors?)),
        };
        Some(Verdict {
            workload: figure.description.clone(),
            target,
            reached: format!("{:.1} bytes", figure.each),
            met: figure.each <= limit,
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn instruction_targets_name_measured_paths() {
        for (path, _, other) in INSTRUCTIONS {
            for name in [path, other] {
                assert!(
                    limiter_instructions::PATHS.iter().any(|path| path.name == name),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn each_target_uses_a_workload_that_measures_it() {
        for target in TARGETS {
            let workload = Workload::named(target.workload).expect("the workload exists");
            let missing = target
                .needs()
                .into_iter()
                .find(|needed| !workload.contenders.contains(needed));
            assert_eq!(missing, None, "{}", target.workload);
        }
    }
}
