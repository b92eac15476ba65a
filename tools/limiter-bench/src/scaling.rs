//! Growth of the costs of a decision with keys, callers, processes, nodes, limits and offered load.

mod open_loop;
mod page;
mod panel;
mod processes;

use std::path::Path;
use std::{fs, io};

use limiter_testing::RedisServer;

pub(crate) use processes::{ROLE, child};

use crate::contender::{Contender, Quota};
use crate::environment::{Environment, Place};
use crate::keys::Distribution;
use crate::machine::Machine;
use crate::sample::{Sample, median};
use crate::workload::{Load, Pace, STRICT, turn};

/// One permit in 1,000 s: no key expires before its memory is measured.
const KEPT: Quota = Quota {
    permits: 1_000_000,
    seconds: 1_000_000_000,
};

/// A figure over a quantity.
#[derive(Debug)]
struct Curve {
    figure: &'static str,
    quantity: &'static str,
    /// True if the figure is expected not to change with the quantity.
    is_flat: bool,
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// Returns the exponent e of the power law figure ~ quantity^e, by least squares of the
    /// logarithms.
    fn exponent(&self) -> f64 {
        let logs = || self.points.iter().map(|(x, y)| (x.ln(), y.ln()));
        let count = self.points.len() as f64;
        let (mean_x, mean_y) = (
            logs().map(|(x, _)| x).sum::<f64>() / count,
            logs().map(|(_, y)| y).sum::<f64>() / count,
        );
        let product: f64 = logs().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
        let square: f64 = logs().map(|(x, _)| (x - mean_x).powi(2)).sum();
        product / square
    }
}

/// Measures all curves, and writes their plots and their page.
pub(crate) fn run(pace: Pace) -> Result<(), String> {
    let environment = Environment::default();
    let machine = Machine::detect(&environment);
    eprintln!("{}", machine.describe());
    let mut curves = Vec::new();
    curves.extend(callers(&environment, pace));
    curves.extend(offered(&environment, pace));
    curves.extend(processes(&environment, pace));
    curves.extend(limits(&environment, pace));
    curves.extend(nodes(pace));
    curves.extend(keys(&environment, pace));
    print!("{}", page::table(&curves));
    write(&machine, &curves).map_err(|error| format!("the plots cannot be written: {error}"))
}

fn write(machine: &Machine, curves: &[Curve]) -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap_or(Path::new("."));
    let directory = root.join("benchmarks");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("scaling.svg"), panel::all(curves))?;
    fs::write(directory.join("scaling.md"), page::page(machine, curves))
}

/// Returns the medians of the turns of ours under this load.
fn medians(name: &str, load: &Load, environment: &Environment, pace: Pace) -> Sample {
    eprintln!("{name}");
    let turns: Vec<Sample> = (0..pace.rounds)
        .map(|_| turn("scaling", load, Contender::Ours, environment, pace))
        .collect();
    let of = |figure: fn(&Sample) -> f64| median(turns.iter().map(figure));
    Sample {
        decisions_per_second: of(|turn| turn.decisions_per_second),
        p50_us: of(|turn| turn.p50_us),
        p99_us: of(|turn| turn.p99_us),
        server_us: Some(of(|turn| turn.server_us.unwrap_or_default())),
        client_us: Some(of(|turn| turn.client_us.unwrap_or_default())),
    }
}

fn curve(
    figure: &'static str,
    quantity: &'static str,
    is_flat: bool,
    points: impl IntoIterator<Item = (usize, f64)>,
) -> Curve {
    Curve {
        figure,
        quantity,
        is_flat,
        points: points.into_iter().map(|(x, y)| (x as f64, y)).collect(),
    }
}

fn server(sample: &Sample) -> f64 {
    sample.server_us.unwrap_or_default()
}

fn callers(environment: &Environment, pace: Pace) -> [Curve; 2] {
    const QUANTITY: &str = "callers";
    let measured = [1, 4, 16, 64, 256, 1_024, 4_096].map(|tasks| {
        let sample = medians(
            &format!("{tasks} callers"),
            &Load { tasks, ..STRICT },
            environment,
            pace,
        );
        (tasks, sample)
    });
    let points = |figure: fn(&Sample) -> f64| measured.iter().map(move |(tasks, of)| (*tasks, figure(of)));
    [
        curve(
            "thousand decisions/s",
            QUANTITY,
            false,
            points(|of| of.decisions_per_second / 1e3),
        ),
        curve("p99 ms", QUANTITY, false, points(|of| of.p99_us / 1e3)),
    ]
}

/// Latency against the rate of an open loop, up to 90 % of its own capacity: the closed loop starts
/// no task per call, so it decides more calls per second.
fn offered(environment: &Environment, pace: Pace) -> [Curve; 2] {
    const QUANTITY: &str = "% of capacity";
    let load = Load { tasks: 512, ..STRICT };
    let of_closed_loop = medians("capacity", &load, environment, pace).decisions_per_second;
    let saturated = || open_loop::measure(&STRICT, of_closed_loop, environment, pace).decisions_per_second;
    let capacity = median((0..pace.rounds).map(|_| saturated()));
    let measured = [10, 30, 50, 70, 80, 90].map(|percent| {
        eprintln!("{percent} % of {capacity:.0}/s");
        let rate = capacity * percent as f64 / 100.0;
        let turns: Vec<_> = (0..pace.rounds)
            .map(|_| open_loop::measure(&STRICT, rate, environment, pace).latencies)
            .collect();
        let quantile = |part| median(turns.iter().map(|turn| turn.quantile_us(part)));
        (percent, quantile(0.50) / 1e3, quantile(0.99) / 1e3)
    });
    [
        curve("p50 ms", QUANTITY, false, measured.map(|(x, p50, _)| (x, p50))),
        curve("p99 ms", QUANTITY, false, measured.map(|(x, _, p99)| (x, p99))),
    ]
}

fn processes(environment: &Environment, pace: Pace) -> [Curve; 2] {
    const QUANTITY: &str = "processes";
    let measured = [1, 2, 4, 8].map(|count| {
        eprintln!("{count} processes");
        let turns: Vec<_> = (0..pace.rounds)
            .map(|_| processes::turn(count, environment, pace))
            .collect();
        let rate = median(turns.iter().map(|turn| turn.decisions_per_second));
        (count, rate, median(turns.iter().map(|turn| turn.server_us)))
    });
    [
        curve(
            "thousand decisions/s",
            QUANTITY,
            false,
            measured.map(|(x, rate, _)| (x, rate / 1e3)),
        ),
        curve(
            "server µs",
            QUANTITY,
            true,
            measured.map(|(x, _, server)| (x, server)),
        ),
    ]
}

fn limits(environment: &Environment, pace: Pace) -> [Curve; 2] {
    const QUANTITY: &str = "limits";
    let measured = [1, 2, 3, 4, 8, 16].map(|limits| {
        let sample = medians(
            &format!("{limits} limits"),
            &Load { limits, ..STRICT },
            environment,
            pace,
        );
        (limits, sample)
    });
    [
        curve(
            "server µs",
            QUANTITY,
            false,
            measured.iter().map(|(x, of)| (*x, server(of))),
        ),
        curve(
            "server µs per limit",
            QUANTITY,
            true,
            measured.iter().map(|(x, of)| (*x, server(of) / *x as f64)),
        ),
    ]
}

fn nodes(pace: Pace) -> [Curve; 2] {
    const CALLERS_OF_NODE: usize = 32;
    const QUANTITY: &str = "nodes of a cluster";
    let measured = [1, 2, 3, 4, 6].map(|nodes| {
        // An equal number of callers per node.
        let load = Load {
            place: Place::Cluster,
            tasks: CALLERS_OF_NODE * usize::from(nodes),
            ..STRICT
        };
        let environment = Environment::with_nodes(nodes);
        (
            usize::from(nodes),
            medians(&format!("{nodes} nodes"), &load, &environment, pace),
        )
    });
    [
        curve(
            "server µs",
            QUANTITY,
            true,
            measured.iter().map(|(x, of)| (*x, server(of))),
        ),
        curve(
            "client µs",
            QUANTITY,
            true,
            measured
                .iter()
                .map(|(x, of)| (*x, of.client_us.unwrap_or_default())),
        ),
    ]
}

fn keys(environment: &Environment, pace: Pace) -> [Curve; 2] {
    const QUANTITY: &str = "keys";
    let measured = [1_000, 10_000, 100_000, 1_000_000, 10_000_000].map(|keys| {
        environment.server().command(&["FLUSHALL"]);
        let before = used_memory(environment.server());
        let load = Load {
            distribution: Distribution::Even(keys),
            quota: KEPT,
            filled: keys,
            ..STRICT
        };
        // The time is that of the calls before each turn.
        let rounds = if keys > 100_000 { 1 } else { pace.rounds };
        let sample = medians(
            &format!("{keys} keys"),
            &load,
            environment,
            Pace { rounds, ..pace },
        );
        let bytes = used_memory(environment.server()).saturating_sub(before) as f64 / keys as f64;
        (keys, server(&sample), bytes)
    });
    // Ten million keys take longer to remove than the server may take to reply.
    environment.server().command(&["FLUSHALL", "ASYNC"]);
    [
        curve("server µs", QUANTITY, true, measured.map(|(x, us, _)| (x, us))),
        curve(
            "bytes per key",
            QUANTITY,
            true,
            measured.map(|(x, _, bytes)| (x, bytes)),
        ),
    ]
}

fn used_memory(server: &RedisServer) -> u64 {
    let info = server.command(&["INFO", "memory"]).text();
    let value = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponent_of_a_power_law_is_found() {
        let points = [1, 10, 100].map(|x| (x, 3.0 * (x as f64).sqrt()));
        assert!((curve("y", "x", false, points).exponent() - 0.5).abs() < 1e-9);
        let flat = curve("y", "x", true, [(1, 4.0), (8, 4.0)]);
        assert!(flat.exponent().abs() < 1e-9);
    }
}
