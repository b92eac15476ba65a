//! The Markdown page of a report.

use std::fmt::Write as _;

use super::{COLUMNS, Report, cells, plot, thousands};
use crate::targets::Verdict;

const HOW: &str = "\
Contenders take turns in one process, on one Redis server that the benchmark starts on the same machine, each with its own
keys. A turn begins with an empty server and new connections, one call for every key (at most for the first 10,000), and a
warm-up that is not measured. Figures are medians over the turns, ratios are the medians of the ratios within a round of
turns. Tasks call in a closed loop: each awaits its decision before the next call, so latencies are those of that number of
callers. `ours` runs with its default settings, except for a deadline and a bound on calls in flight with which Redis makes
every decision.

- *± %*: half the distance between the fastest and the slowest turn.
- *server µs*: processor time of the Redis processes per decision, including sockets (`used_cpu_user` and `used_cpu_sys` of
  INFO); *client µs*: processor time of the calling threads, as counted by the kernel's scheduler.
- *instructions*: executed by the caller's thread for a decision, if a path under *Instructions* is equivalent.
- *admitted*: the calls that four concurrent processes with one limit of 100 were allowed together, divided by 100.
- `incrby` is INCRBY on one multiplexed connection, the lower bound of one command per decision; it limits only a total.
  `script-multiplexed` and `script-bb8` are a plain token bucket in Lua, one EVALSHA per decision, on one multiplexed
  connection and on a pool of 16 (without a PING at check-out). For a decision with three limits they send three commands
  in a pipeline, which is not one atomic decision.
- In process the clock is read once for 64 decisions: a latency is their mean.
- Limits are so large that no call is denied, unless the name of the workload says otherwise. With Redis, a key refills 10
  permits per second, slightly less than the rate of calls on one of 10,000 keys; in process, one in half a minute. So the
  state of every key is kept: a key that refills at once could be deleted, which costs less. (If a permit takes more than a
  second to refill, many charges of `ours` set the time to live of the key, which takes 0.8 µs more in Redis.)
- The ratio of a layer is relative to the service without a layer; its overhead is the difference. `axum-governor` adds
  headers to every response by default; the others add none.
";

const COUNTED: &str = "\
`cargo xtask bench --instructions` counts the executed instructions of these paths under valgrind and compares them with
`benchmarks/instructions/`. Unlike the times, they do not depend on the load of the machine. Only the thread that makes the
decisions is counted, not the Redis server. The limiters in process use a manual clock, which differs from the system's by
a few instructions.
";

/// The limiting factors, written by hand.
const LIMITS: &str = include_str!("limits.md");

/// BENCHMARKS.md: plots, targets and limiting factors.
pub(super) fn page(report: &Report) -> String {
    let mut page = String::from("# Benchmarks\n\nWritten by `cargo xtask bench`.\n\n");
    let _ = writeln!(page, "Measured on: {}.\n", report.machine.describe());
    for (name, _) in plot::all(&report.series) {
        let _ = writeln!(page, "![{}](benchmarks/{name})\n", name.trim_end_matches(".svg"));
    }
    page.push_str("![scaling](benchmarks/scaling.svg)\n\n## Targets\n\n");
    page.push_str("| workload | target | reached | |\n|---|---|---|---|\n");
    for Verdict {
        workload,
        target,
        reached,
        met,
    } in report.judged()
    {
        let met = if met { "met" } else { "not met" };
        let _ = writeln!(page, "| {workload} | {target} | {reached} | {met} |");
    }
    let _ = write!(page, "\n## Limiting factors\n\n{LIMITS}\n{FURTHER}");
    page
}

const FURTHER: &str = "\
[All figures](benchmarks/figures.md) with the method, [growth](benchmarks/scaling.md) with keys, callers, processes, limits
and nodes, and the [variants](docs/design/benchmark-variants.md) that were measured.
";

/// Returns the method and all figures.
pub(super) fn figures(report: &Report) -> String {
    let mut page = String::from("# Figures\n\nWritten by `cargo xtask bench`.\n\n");
    let _ = writeln!(page, "Measured on: {}.\n\n{HOW}", report.machine.describe());
    if let Some(counts) = &report.counts {
        let _ = writeln!(
            page,
            "## Instructions\n\n{COUNTED}\nCounted with: {}.\n",
            counts.conditions
        );
        page.push_str("| path | work of one decision | instructions |\n|---|---|---:|\n");
        for (name, work, count) in report.counted() {
            let _ = writeln!(page, "| `{name}` | {work} | {} |", thousands(count));
        }
        page.push('\n');
    }
    page.push_str("## Memory\n\n| | contender | bytes |\n|---|---|---|\n");
    for figure in &report.memory {
        let _ = writeln!(
            page,
            "| {} | {} | {:.1} |",
            figure.description,
            figure.contender.name(),
            figure.each
        );
    }
    page.push_str("\n## All figures\n");
    let mut workload = "";
    for series in &report.series {
        if series.workload.name != workload {
            workload = series.workload.name;
            let reference = series.workload.reference().name();
            let _ = writeln!(
                page,
                "\n`{workload}`: {}. Ratio to `{reference}`.\n",
                series.workload.description
            );
            let _ = writeln!(
                page,
                "| {} |\n|---|{}",
                COLUMNS.join(" | "),
                "---:|".repeat(COLUMNS.len() - 1)
            );
        }
        let _ = writeln!(page, "| {} |", cells(series, report).join(" | "));
    }
    page
}
