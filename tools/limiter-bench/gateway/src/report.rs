//! The table of medians, and of ratios within one round.

use std::fmt;

use crate::contender::{FLOOR, ON_REDIS};
use crate::load::Sample;
use crate::protocol::Protocol;

/// The samples of all contenders, in order of their first round.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    group: &'static str,
    name: &'static str,
    samples: Vec<Sample>,
}

impl Report {
    pub(crate) fn add(&mut self, protocol: Protocol, name: &'static str, sample: Sample) {
        let group = protocol.group();
        let row = self
            .rows
            .iter_mut()
            .find(|row| (row.group, row.name) == (group, name));
        match row {
            Some(row) => row.samples.push(sample),
            None => self.rows.push(Row {
                group,
                name,
                samples: vec![sample],
            }),
        }
    }

    /// Returns the samples of a row, if it was measured.
    pub(crate) fn samples(&self, group: &str, name: &str) -> Option<&[Sample]> {
        let mut rows = self.rows.iter();
        let row = rows.find(|row| (row.group, row.name) == (group, name));
        row.map(|row| &*row.samples)
    }

    /// Writes the processor time of the load generator, which shares the machine with the servers.
    fn write_clients(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grpc = Protocol::EnvoyGrpc.group();
        let client = |name| {
            let samples = self.samples(grpc, name)?;
            Some(median(samples.iter().map(|of| of.client_micros).collect()))
        };
        match client(ON_REDIS).zip(client(FLOOR)) {
            Some((ours, floor)) => writeln!(
                f,
                "\nthe load generator: {ours:.1} µs for {ON_REDIS}, {floor:.1} µs for {FLOOR}"
            ),
            None => Ok(()),
        }
    }

    /// Returns the row that the others of a group are compared with.
    fn first_of(&self, group: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.group == group)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| protocol | server | calls/s | ratio (least–greatest) | server µs | client µs | failed |"
        )?;
        writeln!(f, "|---|---|---:|---:|---:|---:|---:|")?;
        for row in &self.rows {
            let median_of = |value: fn(&Sample) -> f64| median(row.samples.iter().map(value).collect());
            let base = self.first_of(row.group).map_or(&[][..], |first| &first.samples);
            let ratios = row.samples.iter().zip(base);
            let mut ratios: Vec<f64> = ratios
                .map(|(own, base)| own.per_second / base.per_second)
                .collect();
            ratios.sort_by(f64::total_cmp);
            let (least, greatest) = (ratios.first().copied(), ratios.last().copied());
            writeln!(
                f,
                "| {} | {} | {:.0} | {:.2} ({:.2}–{:.2}) | {:.1} | {:.1} | {} |",
                row.group,
                row.name,
                median_of(|sample| sample.per_second),
                median(ratios),
                least.unwrap_or(0.0),
                greatest.unwrap_or(0.0),
                median_of(|sample| sample.server_micros),
                median_of(|sample| sample.client_micros),
                row.samples.iter().map(|sample| sample.failed).sum::<u64>(),
            )?;
        }
        self.write_clients(f)
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
