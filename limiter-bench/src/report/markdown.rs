//! The page for people who want to know before they try.

use std::fmt::Write as _;

use super::{COLUMNS, Report, cells, plot, thousands};
use crate::targets::Verdict;

const HOW: &str = "\
Contenders take turns in one process, on one Redis server that the benchmark starts on the same machine, each with keys of
its own; a turn begins with an empty server and new connections; every key is asked for (of many, the first 10,000), and a
warm-up goes by before anything is counted. Figures are medians over the turns, ratios the medians of
the ratios within a round of turns. Tasks ask in a closed loop: each waits for its answer before it asks again, so latencies
are those of that many callers. `ours` runs with its default settings, except that its deadline is so long that every
decision is made by Redis.

- *± %*: half the distance between the fastest and the slowest turn.
- *server µs*: processor time of the Redis processes, sockets included (`used_cpu_user` and `used_cpu_sys` of INFO), a
  decision; *client µs*: that of the threads that ask, as the kernel's scheduler counts it.
- *instructions*: those that the caller's thread executes for a decision, where a path under *Instructions* does the same.
- *admitted*: what four processes that ask at the same time for one limit of 100 were allowed together, divided by 100.
- `incrby` is INCRBY on one multiplexed connection, the floor of one command a decision; it limits nothing but a total.
  `script-multiplexed` and `script-bb8` are a plain token bucket in Lua, one EVALSHA a decision, on one multiplexed
  connection and on a pool of 16 (without a PING at check-out). Where a decision has three limits, they send three commands
  in a pipeline, which is not one decision.
- In process the clock is read once for 64 decisions: a latency is their mean.
- Limits are so wide that no call is denied, except where the name says so. With Redis 10 permits a second come back to a key,
  a little less than 10,000 keys are asked for; in process one in half a minute. So every key's state lasts: one that is whole
  again at once would be forgotten by who forgets it, and cost less. (Where a permit takes more than a second to come back, a
  charge of ours sets the key's time to live each time, which takes Redis 0.8 µs more.)
- A layer's ratio is that to the service without a layer. What it adds is the difference. `axum-governor` adds headers to
  every response, as it comes; the others add none.
";

const COUNTED: &str = "\
`cargo xtask bench --instructions` counts the executed instructions of these paths under valgrind and compares them with
`benchmarks/instructions/`. Unlike the times, they do not depend on the load of the machine. Only the thread that makes the
decisions counts: in Redis rows the server does not. The clock of the limiters in process stands still, and is cheaper or
dearer than the system's by some instructions.
";

/// Written by hand: what was found out about the rows that fall short.
const BOUNDS: &str = include_str!("bounds.md");

pub(super) fn page(report: &Report) -> String {
    let mut page = String::from("# Benchmarks\n\nWritten by `cargo xtask bench`.\n\n");
    let _ = writeln!(page, "Measured on: {}.\n\n{HOW}", report.machine.told());
    page.push_str("## Targets\n\n| workload | target | reached | |\n|---|---|---|---|\n");
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
    page.push('\n');
    page.push_str(BOUNDS);
    page.push('\n');
    for (name, _) in plot::all(&report.series) {
        let _ = writeln!(page, "![{}](benchmarks/{name})\n", name.trim_end_matches(".svg"));
    }
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
            figure.what,
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
                series.workload.what
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
