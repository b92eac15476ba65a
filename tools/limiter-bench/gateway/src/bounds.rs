//! The documented bounds of the server's performance, and whether a run meets them.
//!
//! A ratio is the median of the ratios within one round, because the rounds of a busy machine
//! differ. The bound of processor time compares medians of all rounds.

use std::fmt;

use crate::contender::{FLOOR, HTTP_FLOOR, IN_MEMORY, LIBRARY, ON_REDIS, THROTTLECRAB};
use crate::load::Sample;
use crate::protocol::Protocol;
use crate::report::{Report, median};

/// The factor of the library's processor time in the bound of the server on Redis.
const LIBRARY_FACTOR: f64 = 1.3;

/// A ratio of calls per second of two rows of one group, which must not be below a number.
struct RatioBound {
    protocol: Protocol,
    row: &'static str,
    base: &'static str,
    least: f64,
}

const RATIOS: [RatioBound; 4] = [
    RatioBound {
        protocol: Protocol::EnvoyGrpc,
        row: IN_MEMORY,
        base: FLOOR,
        least: 0.8,
    },
    RatioBound {
        protocol: Protocol::EnvoyGrpc,
        row: IN_MEMORY,
        base: THROTTLECRAB,
        least: 1.0,
    },
    RatioBound {
        protocol: Protocol::EnvoyGrpc,
        row: ON_REDIS,
        base: IN_MEMORY,
        least: 0.6,
    },
    RatioBound {
        protocol: Protocol::HttpCheck,
        row: IN_MEMORY,
        base: HTTP_FLOOR,
        least: 0.7,
    },
];

/// The result of one bound.
struct CheckedBound {
    title: String,
    /// The measured value and the bound as texts; `None` if a row was not measured.
    values: Option<(String, String)>,
    is_met: bool,
}

/// The results of all bounds.
pub(crate) struct CheckedBounds(Vec<CheckedBound>);

impl CheckedBounds {
    /// Compares a report with all bounds.
    pub(crate) fn of(report: &Report) -> Self {
        let mut checked: Vec<CheckedBound> = RATIOS.iter().map(|bound| bound.check(report)).collect();
        checked.push(processor_time(report));
        Self(checked)
    }

    /// Returns whether all bounds were measured and are met.
    pub(crate) fn are_met(&self) -> bool {
        self.0.iter().all(|bound| bound.is_met)
    }
}

impl RatioBound {
    fn check(&self, report: &Report) -> CheckedBound {
        let group = self.protocol.group();
        let samples = |name| report.samples(group, name);
        // A failed call is faster than a decision.
        let has_failed = samples(self.row).is_some_and(|own| own.iter().any(|sample| sample.failed > 0));
        let ratio = samples(self.row).zip(samples(self.base)).map(|(own, base)| {
            let ratios = own.iter().zip(base);
            median(
                ratios
                    .map(|(own, base)| own.per_second / base.per_second)
                    .collect(),
            )
        });
        CheckedBound {
            title: format!("{group}: {} / {}", self.row, self.base),
            values: ratio.map(|ratio| (format!("{ratio:.2}"), format!("at least {:.1}", self.least))),
            is_met: !has_failed && ratio.is_some_and(|ratio| ratio >= self.least),
        }
    }
}

/// The processor time of a gRPC call on Redis: at most that of the service without decisions and
/// 1.3 times that of the library.
fn processor_time(report: &Report) -> CheckedBound {
    let grpc = Protocol::EnvoyGrpc.group();
    let of = |group, name, value: fn(&Sample) -> f64| {
        let samples = report.samples(group, name)?;
        // Failed calls use processor time, which raises the mean of the answered calls.
        let all_answered = samples.iter().all(|sample| sample.failed == 0);
        all_answered.then(|| median(samples.iter().map(value).collect()))
    };
    let server = |name| of(grpc, name, |sample| sample.server_micros);
    let library = of(Protocol::Library.group(), LIBRARY, |sample| sample.client_micros);
    let values = server(ON_REDIS).zip(server(FLOOR)).zip(library);
    let values = values.map(|((ours, floor), library)| (ours, floor + LIBRARY_FACTOR * library));
    CheckedBound {
        title: format!("{grpc}: processor µs of {ON_REDIS}; {FLOOR} + {LIBRARY_FACTOR} × {LIBRARY}"),
        values: values.map(|(ours, bound)| (format!("{ours:.1}"), format!("at most {bound:.1}"))),
        is_met: values.is_some_and(|(ours, bound)| ours <= bound),
    }
}

impl fmt::Display for CheckedBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| bound | measured | expected | |")?;
        writeln!(f, "|---|---:|---:|---|")?;
        for CheckedBound {
            title,
            values,
            is_met,
        } in &self.0
        {
            let (measured, expected) = match values {
                Some((measured, expected)) => (measured.as_str(), expected.as_str()),
                None => ("not measured", ""),
            };
            let result = if *is_met { "met" } else { "failed" };
            writeln!(f, "| {title} | {measured} | {expected} | {result} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(per_second: f64, micros: f64) -> Sample {
        Sample {
            per_second,
            server_micros: micros,
            client_micros: micros,
            failed: 0,
        }
    }

    fn with_failure(sample: Sample) -> Sample {
        Sample { failed: 1, ..sample }
    }

    /// Returns a report in which every bound is met exactly, with one row replaced.
    fn report(protocol: Protocol, replaced: &str, by: Option<Sample>) -> Report {
        let mut report = Report::default();
        for (of, name, row) in [
            (Protocol::Library, LIBRARY, sample(1.0, 2.0)),
            (Protocol::EnvoyGrpc, FLOOR, sample(100.0, 10.0)),
            (Protocol::EnvoyGrpc, IN_MEMORY, sample(80.0, 9.0)),
            (Protocol::EnvoyGrpc, ON_REDIS, sample(48.0, 12.6)),
            (Protocol::ThrottleGrpc, THROTTLECRAB, sample(80.0, 9.0)),
            (Protocol::HttpCheck, HTTP_FLOOR, sample(100.0, 9.0)),
            (Protocol::HttpCheck, IN_MEMORY, sample(70.0, 9.0)),
        ] {
            let row = match of == protocol && name == replaced {
                true => by,
                false => Some(row),
            };
            if let Some(row) = row {
                report.add(of, name, row);
            }
        }
        report
    }

    #[test]
    fn each_bound_can_fail() {
        let met = CheckedBounds::of(&report(Protocol::Library, "none", None));
        assert!(met.are_met(), "{met}");
        for (protocol, name, by) in [
            (Protocol::EnvoyGrpc, IN_MEMORY, Some(sample(79.0, 9.0))),
            (Protocol::EnvoyGrpc, ON_REDIS, Some(sample(47.0, 12.6))),
            (Protocol::EnvoyGrpc, ON_REDIS, Some(sample(48.0, 12.7))),
            (Protocol::ThrottleGrpc, THROTTLECRAB, Some(sample(81.0, 9.0))),
            (Protocol::HttpCheck, IN_MEMORY, Some(sample(69.0, 9.0))),
            (Protocol::ThrottleGrpc, THROTTLECRAB, None),
            (Protocol::Library, LIBRARY, None),
            (
                Protocol::EnvoyGrpc,
                ON_REDIS,
                Some(with_failure(sample(50.0, 9.0))),
            ),
            (Protocol::EnvoyGrpc, FLOOR, Some(with_failure(sample(80.0, 10.0)))),
            (Protocol::Library, LIBRARY, Some(with_failure(sample(1.0, 2.0)))),
        ] {
            let failed = CheckedBounds::of(&report(protocol, name, by));
            assert!(!failed.are_met(), "{name}: {failed}");
        }
    }
}
