//! The pages for operators and the dashboard match the code.
#![cfg(feature = "redis")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

#[path = "operations/sizes.rs"]
mod sizes;
#[path = "operations/source.rs"]
mod source;
mod support;

use std::collections::BTreeSet;
use std::path::Path;

use limiter_core::{Limiter, Policy};
use limiter_testing::{RedisServer, RespValue};
use serde_json::Value;
use source::{events, read};
use support::{bucket, funnel, window};

/// The pages for operators, as one text.
const PAGE: &str = concat!(
    include_str!("../../docs/operations.md"),
    include_str!("../../docs/sizing.md"),
    include_str!("../../docs/monitoring.md"),
    include_str!("../../docs/rollout.md"),
);
const DASHBOARD: &str = include_str!("../../docs/dashboard.json");

/// The rows of the table below a heading, each cell without blanks around it.
fn table(heading: &str) -> Vec<Vec<String>> {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).unwrap();
    let rows = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let cells = |row: &str| {
        // A bar within a cell is written `\|`.
        let cells = row.trim_matches('|').replace("\\|", "\u{1}");
        let cells = cells.split('|').map(|cell| cell.trim().replace('\u{1}', "|"));
        cells.collect()
    };
    rows.map(cells).collect()
}

/// The text between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Every metric name in a text, without the suffixes that exporters add to histograms.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let is_foreign = |word: &str| {
        // The server exports metrics of its own, which its tests compare with its documents.
        matches!(word, "limiter_core" | "limiter_server" | "limiter_tower")
            || word.starts_with("limiter_server_")
    };
    let names = words.filter(|word| word.starts_with("limiter_") && !is_foreign(word));
    let names = names.map(|name| {
        let bare = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|part| name.strip_suffix(part));
        bare.unwrap_or(name).to_owned()
    });
    names.collect()
}

fn metrics_of_the_code() -> BTreeSet<String> {
    metrics_in(&read(Path::new("limiter-core/src/observe/names.rs")))
}

#[tokio::test]
async fn keys_take_documented_bytes() {
    let server = RedisServer::start();
    let limits = Limiter::redis(server.url())
        .namespace("prod:checkout")
        .build()
        .unwrap();
    let memory = server.command(&["INFO", "memory"]).text();
    let rounding = if memory.contains("mem_allocator:libc") {
        48
    } else {
        0
    };
    for row in table("Memory per key") {
        let [algorithm, permits, value, usage] = &row[..] else {
            panic!("{row:?}")
        };
        let permits: u64 = permits.parse().unwrap_or(100);
        let policy = match &**algorithm {
            "token bucket" => bucket("search", 100, 1),
            "funnel" => funnel("search", 100, 1),
            "counter window" => Policy::counter_window("search")
                .limit(100)
                .window("1h")
                .build()
                .unwrap(),
            "fixed window" => Policy::fixed_window("search")
                .limit(100)
                .window("1h")
                .build()
                .unwrap(),
            _ => window("search", permits, "1h"),
        };
        // Permits are charged one by one, because Redis allocates more memory than necessary for a
        // growing string.
        let singly = permits.min(100);
        for cost in (0..singly).map(|_| 1).chain([permits - singly]) {
            let decision = limits.check(&policy, "user:00000001").cost(cost).await;
            decision.unwrap().require().unwrap();
        }
        let keys = server.command(&["KEYS", "*{user:00000001}"]);
        let [key] = &keys.items().iter().map(RespValue::text).collect::<Vec<_>>()[..] else {
            panic!("one key: {keys:?}")
        };
        assert_eq!(key.len(), "prod:checkout|tb|search|{user:00000001}".len());
        let result: i64 = value.parse().unwrap();
        assert_eq!(server.command(&["STRLEN", key]).integer(), result, "{row:?}");
        // Releases of Redis and of its allocator differ a little. The allocator of the C library
        // adds up to 16 bytes to each of the three allocations, where a free block is larger.
        let (result, used): (i64, _) = (
            usage.parse().unwrap(),
            server.command(&["MEMORY", "USAGE", key]).integer(),
        );
        assert!(
            (result * 85 / 100..=result * 115 / 100 + rounding).contains(&used),
            "{row:?}, but {used}"
        );
        limits.reset(&policy, "user:00000001").await.unwrap();
    }
}

#[tokio::test]
async fn each_further_key_takes_documented_bytes() {
    const KEYS: i64 = 4_096;
    let server = RedisServer::start();
    let limits = Limiter::redis(server.url())
        .namespace("prod:checkout")
        .build()
        .unwrap();
    let used = || {
        let info = server.command(&["INFO", "memory"]).text();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"))
            .unwrap();
        line.trim().parse::<i64>().unwrap()
    };
    let policy = bucket("search", 100, 1);
    // Connections, and the script.
    let _ = limits.check(&policy, "first").await.unwrap();
    let before = used();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..KEYS {
        let (limits, policy) = (limits.clone(), policy.clone());
        calls.spawn(async move { limits.check(&policy, format!("user:{number:08}")).await });
    }
    while let Some(decision) = calls.join_next().await {
        assert!(decision.unwrap().unwrap().is_allowed());
    }
    let is_valkey = server
        .command(&["INFO", "server"])
        .text()
        .contains("valkey_version:");
    let result = if is_valkey { 150 } else { 136 + 64 };
    let each = (used() - before) / KEYS;
    assert!(
        (result * 75 / 100..=result * 125 / 100).contains(&each),
        "{each} bytes"
    );
}

#[test]
fn documented_times_match_code() {
    let rows = table("Latency budget");
    assert!(rows.len() > 10);
    for row in rows {
        let (file, name) = quoted(&row[2])[0].split_once(": ").unwrap();
        let (number, unit) = row[1].split_once(' ').unwrap();
        let span = match unit {
            "ms" => format!("from_millis({number})"),
            "s" => format!("from_secs({number})"),
            other => panic!("{other}"),
        };
        let line = format!("const {name}: Duration = Duration::{span};");
        let sources = source::files("limiter-core/src");
        let of_file = sources
            .iter()
            .filter(|(path, _)| path.to_string_lossy().ends_with(&format!("/{file}")));
        assert!(
            of_file.clone().any(|(_, text)| text.contains(&line)),
            "{file} has {line}"
        );
    }
    assert_eq!(Policy::DEFAULT_DEADLINE.as_millis(), 50);
}

/// The decisions per second of `ours` in a workload of the recorded benchmark.
fn recorded_rate(figures: &str, workload: &str) -> u64 {
    let (_, section) = figures.split_once(&format!("\n`{workload}`: ")).unwrap();
    let row = section.lines().find(|line| line.starts_with("| ours |")).unwrap();
    number(row.split('|').nth(2).unwrap().trim())
}

fn number(text: &str) -> u64 {
    let digits = text.split(' ').next().unwrap().replace(',', "");
    digits.parse().unwrap()
}

#[test]
fn documented_capacity_matches_recorded_benchmark() {
    let figures = read(Path::new("benchmarks/figures.md"));
    let (_, machine) = figures.split_once("\nMeasured on: ").unwrap();
    let processor = machine.split(',').next().unwrap();
    assert!(PAGE.contains(&format!("of an {processor}")), "{processor}");
    let workloads = [
        "strict-10k-64",
        "strict-10k-512",
        "hot-denied-64",
        "lease-hot-64",
        "local-1",
    ];
    let rows = table("Capacity");
    assert_eq!(rows.len(), workloads.len());
    for (row, workload) in rows.iter().zip(workloads) {
        let (documented, recorded) = (number(&row[1]), recorded_rate(&figures, workload));
        assert!(
            (recorded * 9 / 10..=recorded * 11 / 10).contains(&documented),
            "{row:?}, but {workload} has {recorded}"
        );
    }
}

#[test]
fn documented_registry_bounds_match_code() {
    let rows = table("A registry in Redis");
    assert_eq!(rows.len(), 5);
    for row in rows {
        let (file, name) = quoted(&row[2])[0].split_once(": ").unwrap();
        let result: usize = row[1].split(' ').next().unwrap().parse().unwrap();
        let text = read(Path::new(&format!("limiter-core/src/{file}")));
        let (_, value) = text.split_once(&format!("const {name}: usize = ")).unwrap();
        let value = value.split(';').next().unwrap().replace('_', "");
        let value = match value.split_once(" << ") {
            Some((number, by)) => number.parse::<usize>().unwrap() << by.parse::<u32>().unwrap(),
            None => value.parse().unwrap(),
        };
        assert_eq!(value, result, "{row:?}");
    }
}

/// Alerts must use existing label values. The page lists the values of each label, and another test
/// compares the list with the code.
#[test]
fn alerts_use_existing_label_values() {
    let (_, rules) = PAGE.split_once("```yaml\n").unwrap();
    let (rules, _) = rules.split_once("```").unwrap();
    let (_, result) = PAGE.split_once("\n`outcome`: ").unwrap();
    let (result, _) = result.split_once("\n\n").unwrap();
    let result = quoted(result);
    let mut compared = 0;
    for expr in rules
        .lines()
        .filter(|line| line.trim_start().starts_with("expr: "))
    {
        for values in expr.split("{").skip(1).filter_map(|rest| rest.split('}').next()) {
            let values = values.split('"').nth(1).unwrap();
            for value in values.split('|') {
                assert!(result.contains(&value), "`{value}` of {expr}");
                compared += 1;
            }
        }
        // Programs with namespaces of their own have different numbers of replicas and revisions.
        let compares_replicas = expr.contains(" != ");
        assert!(
            !compares_replicas || expr.matches(" by (job) ").count() == 2,
            "{expr}"
        );
    }
    assert!(compared > 8, "{compared}");
}

/// A counter has no series before its first event, and `increase` does not include the first value
/// of a series. An alert without a duration reports single events.
#[test]
fn alerts_of_single_events_include_new_series() {
    let (_, rules) = PAGE.split_once("```yaml\n").unwrap();
    let (rules, _) = rules.split_once("```").unwrap();
    let mut single = 0;
    for alert in rules.split("- alert: ").skip(1) {
        let has_duration = alert.lines().any(|line| line.trim_start().starts_with("for: "));
        if alert.contains("increase(") && !has_duration {
            single += 1;
            assert!(
                alert.contains(" unless ") && alert.contains(" offset "),
                "{alert}"
            );
        }
    }
    assert!(single > 0);
}

#[test]
fn documented_metrics_match_code_alerts_and_dashboard() {
    let code = metrics_of_the_code();
    let result: BTreeSet<String> = table("Metrics")
        .iter()
        .map(|row| quoted(&row[0])[0].to_owned())
        .collect();
    assert_eq!(result, code);
    assert!(metrics_in(PAGE).is_subset(&code));
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(
        dashboard["panels"]
            .as_array()
            .is_some_and(|panels| panels.len() >= 8)
    );
    assert_eq!(metrics_in(&dashboard.to_string()), code, "each has a panel");
}

#[test]
fn documented_label_values_match_code() {
    let facade = read(Path::new("limiter-core/src/observe/recorded.rs"));
    for (label, until) in [
        ("outcome", "\n`origin`"),
        ("origin", "\n`kind`"),
        ("kind", "\n`priority`"),
        ("priority", "\n\n"),
    ] {
        let (_, values) = PAGE.split_once(&format!("\n`{label}`: ")).unwrap();
        let (values, _) = values.split_once(until).unwrap();
        for value in quoted(values) {
            assert!(facade.contains(&format!("\"{value}\"")), "{label} {value}");
        }
    }
    // And no undocumented one.
    let values = facade.split('"').skip(1).step_by(2).filter(|value| {
        value
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            && !value.is_empty()
    });
    let labels = [
        "policy", "outcome", "origin", "kind", "priority", "redis", "registry",
    ];
    for value in values.filter(|value| !labels.contains(value)) {
        assert!(PAGE.contains(&format!("`{value}`")), "`{value}` is documented");
    }
}

#[test]
fn documented_events_match_code() {
    let result: BTreeSet<_> = table("Events")
        .into_iter()
        .map(|row| {
            let fields = row[2]
                .split(", ")
                .filter(|field| !field.is_empty())
                .map(str::to_owned);
            (row[0].clone(), row[1].clone(), fields.collect::<Vec<_>>())
        })
        .collect();
    let code: BTreeSet<_> = ["limiter-core/src", "limiter-tower/src"]
        .into_iter()
        .flat_map(source::files)
        .flat_map(|(path, text)| events(&path, &text))
        .collect();
    assert_eq!(result, code);
}

#[test]
fn links_and_fault_names_of_docs_exist() {
    for (page, text) in source::files("docs")
        .into_iter()
        .filter(|(path, _)| path.extension().is_some_and(|end| end == "md"))
    {
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("http") && !target.starts_with('#')) {
            let path = target.split('#').next().unwrap();
            assert!(page.with_file_name(path).exists(), "{}: {target}", page.display());
        }
    }
    let faults: String = source::files("tools/limiter-faults/src")
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    let (_, result) = PAGE.split_once("cargo xtask faults --only ").unwrap();
    let result = format!("`{}", result.split_once(".\n").unwrap().0);
    for fault in quoted(&result) {
        assert!(faults.contains(&format!("\"{fault}\"")), "{fault}");
    }
}
