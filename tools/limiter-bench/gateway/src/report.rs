//! The table of medians, and of ratios within one round.

use std::fmt;

use crate::contender::{FLOOR, LIBRARY, ON_REDIS};
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

    /// The row that the others of a group are compared with.
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
        self.write_bound(f)
    }
}

/// The factor of the library's processor time in the bound of the server on Redis.
const LIBRARY_FACTOR: f64 = 1.3;

impl Report {
    /// Compares the processor time of a gRPC call on Redis with that of the service without
    /// decisions and of the library.
    fn write_bound(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |group: &str, name: &str| {
            let row = self
                .rows
                .iter()
                .find(|row| (row.group, row.name) == (group, name));
            row.map(|row| &row.samples)
        };
        let grpc = Protocol::EnvoyGrpc.group();
        let (Some(floor), Some(ours), Some(library)) = (
            row(grpc, FLOOR),
            row(grpc, ON_REDIS),
            row(Protocol::Library.group(), LIBRARY),
        ) else {
            return Ok(());
        };
        let server = |samples: &[Sample]| median(samples.iter().map(|of| of.server_micros).collect());
        let client = |samples: &[Sample]| median(samples.iter().map(|of| of.client_micros).collect());
        let bound = server(floor) + LIBRARY_FACTOR * client(library);
        writeln!(
            f,
            "\n{ON_REDIS}: {:.1} µs per gRPC call; {FLOOR} + {LIBRARY_FACTOR} × library: {:.1} + {LIBRARY_FACTOR} × {:.1} = {bound:.1} µs",
            server(ours),
            server(floor),
            client(library),
        )?;
        writeln!(
            f,
            "the load generator: {:.1} µs for {ON_REDIS}, {:.1} µs for {FLOOR}",
            client(ours),
            client(floor)
        )
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
