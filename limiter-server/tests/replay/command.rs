//! The command: text, JSON, comparison, rules and errors.

use serde_json::Value;

use crate::support::server::{Directory, run};

const POLICIES: &str = "
[policy.requests]
algorithm = 'token_bucket'
capacity = 2
rate = '1/min'

[policy.export]
algorithm = 'concurrency'
max = 2
";

pub(crate) fn line(address: &str, second: u32, path: &str) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!(
        "{address} - - [01/Jan/2026:12:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 100 \"-\" \"-\"\n"
    )
}

/// Six calls of one client and one of another within a minute.
fn log() -> String {
    let mut log: String = (0..6)
        .map(|second| line("10.0.0.1", second, "/search?q=a"))
        .collect();
    log.push_str(&line("10.0.0.2", 6, "/login"));
    log
}

pub(crate) struct Files(Directory);

impl Files {
    pub(crate) fn new() -> Self {
        let directory = Directory::new();
        directory.write("policies.toml", POLICIES);
        directory.write("access.log", &log());
        Self(directory)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        self.0.write(name, text);
        self.path(name)
    }

    /// Runs the command on the policies and the log; a later flag replaces an earlier one.
    pub(crate) fn replay(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let (policies, log) = (self.path("policies.toml"), self.path("access.log"));
        let fixed = ["replay", "--policies", policies.as_str()];
        let log = if args.contains(&"--log") {
            vec![]
        } else {
            vec!["--log", log.as_str()]
        };
        run(&[&fixed[..], &log, args].concat())
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let (code, output, errors) = self.replay(&[args, &["--json"]].concat());
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        serde_json::from_str(&output).unwrap()
    }
}

/// Clients choose the values of a log, and a terminal obeys control characters.
#[test]
fn text_has_no_control_characters_of_the_log() {
    let files = Files::new();
    let mut log = String::new();
    for second in 0..6 {
        log.push_str(&format!(
            "{{\"time\":{},\"path\":\"/a\\u001b]0;title\\u0007\\n  99 of 99 calls denied: /b\"}}\n",
            1_767_268_800 + second
        ));
    }
    log.push_str("{\"time\":1767268810,\"path\":\"/c\",\"cost\":\"\\u001b[2J\"}\n");
    log.push_str("{\"time\":\"\\u001b[2J\",\"path\":\"/c\"}\n");
    let log = files.write("control.log", &log);
    let (code, output, errors) = files.replay(&["--log", &log, "--key", "path"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let is_control = |of: char| of.is_control() && of != '\n';
    assert!(!output.contains(is_control), "{output:?}");
    let forged = output
        .lines()
        .any(|line| line.trim_start().starts_with("99 of 99"));
    assert!(!forged, "{output}");
    assert!(output.contains("calls denied: /a\u{fffd}]0;title"), "{output}");
}

#[test]
fn text_shows_denials_waits_and_keys() {
    let (code, output, errors) = Files::new().replay(&[]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    for expected in [
        "7 calls in 6 s, 2026-01-01 12:00:00 to 2026-01-01 12:00:06 UTC",
        "requests (token bucket: 2, refilled at 1/min)",
        "3 admitted, 4 denied (57.1 %); 1 of 2 keys denied",
        "longest 58 s",
        "4 of 6 calls denied: 10.0.0.1",
        "concurrency policies are not replayed: export",
        "note: the times are whole seconds",
    ] {
        assert!(output.contains(expected), "{expected} in {output}");
    }
}

#[test]
fn totals_name_policies_in_shadow_mode() {
    let files = Files::new();
    let (_, text, _) = files.replay(&[]);
    assert!(!text.contains("shadow mode"), "{text}");
    let shadow =
        "[policy.tried]\nalgorithm = 'sliding_window'\nlimit = 1\nwindow = '1h'\nenforcement = 'shadow'\n";
    files.write("policies.toml", &format!("{POLICIES}{shadow}"));
    let (code, text, errors) = files.replay(&[]);
    assert_eq!(code, Some(0), "{errors}");
    let note = "the totals count calls as denied that policies in shadow mode would deny: tried\n";
    assert!(
        text.contains("2 admitted, 5 denied") && text.contains(note),
        "{text}"
    );
}

#[test]
fn json_has_all_numbers() {
    let report = Files::new().json(&[]);
    let result = &report["results"][0];
    assert_eq!((&report["lines"], &report["calls"]), (&7.into(), &7.into()));
    assert_eq!((&result["admitted"], &result["denied"]), (&3.into(), &4.into()));
    let policy = &result["policies"][0];
    assert_eq!(policy["waits"]["ranges"], serde_json::json!([0, 0, 4, 0, 0, 0]));
    assert_eq!(policy["waits"]["longest_seconds"], 58.0);
    assert_eq!(policy["most_denied"][0]["key"], "10.0.0.1");
    assert_eq!(
        policy["over_time"]["counts"][2],
        serde_json::json!({"admitted": 0, "denied": 1})
    );
    assert_eq!(report["changes"], Value::Null);
}

#[test]
fn key_of_several_fields_counts_each_combination() {
    let report = Files::new().json(&["--key", "remote_addr,path"]);
    let policy = &report["results"][0]["policies"][0];
    assert_eq!(policy["most_denied"][0]["key"], "10.0.0.1, /search");
    assert_eq!(policy["keys"], 2);
}

#[test]
fn cost_field_is_charged() {
    let files = Files::new();
    let large = POLICIES.replace("capacity = 2", "capacity = 250");
    files.write("policies.toml", &large);
    let report = files.json(&["--cost", "body_bytes_sent"]);
    let policy = &report["results"][0]["policies"][0];
    assert_eq!((&policy["admitted"], &policy["denied"]), (&3.into(), &4.into()));
}

#[test]
fn cost_above_the_capacity_is_never_admitted() {
    let (code, output, errors) = Files::new().replay(&["--cost", "body_bytes_sent"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(output.contains("waits never: 7\n"), "{output}");
}

#[test]
fn comparison_counts_changed_calls() {
    let files = Files::new();
    let other = files.write("other.toml", &POLICIES.replace("capacity = 2", "capacity = 4"));
    let report = files.json(&["--compare", &other]);
    assert_eq!(
        report["changes"],
        serde_json::json!({"newly_denied": 0, "newly_admitted": 2})
    );
    assert_eq!(report["results"][1]["denied"], 2);
    assert_eq!(
        report["results"][0]["policies"][0]["most_denied"][0]["denied_by_other"],
        2
    );
    let (_, output, _) = files.replay(&["--compare", &other]);
    assert!(
        output.contains("0 calls denied only by the second file, 2 denied only by the first"),
        "{output}"
    );
}

#[test]
fn rules_select_policy_of_line() {
    let files = Files::new();
    let rules = format!(
        "{POLICIES}
[[rule]]
match = ['path=/search', 'remote_address']
policy = 'requests'
"
    );
    files.write("policies.toml", &rules);
    let report = files.json(&["--rules", "--key", "path,remote_address=remote_addr"]);
    let result = &report["results"][0];
    assert_eq!((&result["admitted"], &result["denied"]), (&3.into(), &4.into()));
    assert_eq!(result["unmatched"], 1);
    assert_eq!(result["policies"][0]["most_denied"][0]["key"], "10.0.0.1");
    let (_, output, _) = files.replay(&["--rules", "--key", "path,remote_address=remote_addr"]);
    assert!(
        output.contains("1 calls match no rule and are admitted"),
        "{output}"
    );
}

#[test]
fn keys_above_bound_are_undecided_and_reported() {
    let files = Files::new();
    let log: String = (0..300)
        .map(|number| line(&format!("10.0.1.{number}"), 0, "/"))
        .collect();
    files.write("access.log", &log);
    let report = files.json(&["--max-keys", "100"]);
    let result = &report["results"][0];
    let decided = result["admitted"].as_u64().unwrap() + result["denied"].as_u64().unwrap();
    let undecided = result["undecided"].as_u64().unwrap();
    assert_eq!(decided + undecided, 300);
    // The table of the limiter holds the keys of two policies.
    assert_eq!(undecided, 100);
    assert_eq!(result["policies"][0]["keys"], 100);
    assert_eq!(result["policies"][0]["merged_keys"]["calls"], 100);
    let (_, output, _) = files.replay(&["--max-keys", "100"]);
    assert!(
        output.contains("100 calls are undecided: more keys were in use than --max-keys"),
        "{output}"
    );
}

#[test]
fn suggestion_needs_no_policies() {
    let files = Files::new();
    let log = files.path("access.log");
    let (code, output, errors) = run(&["replay", "--suggest", "--max-denied-calls", "0", "--log", &log]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(
        output.contains("smallest token buckets for all calls with at most 0 % of calls denied:"),
        "{output}"
    );
    let recommended: Vec<&str> = output
        .lines()
        .filter(|line| line.ends_with("recommended"))
        .collect();
    assert_eq!(recommended.len(), 1, "{output}");
    let (code, _, errors) = run(&["replay", "--log", &log]);
    assert_eq!(code, Some(2), "{errors}");
}

#[test]
fn suggestion_with_rules_is_for_each_policy() {
    let files = Files::new();
    let rules =
        format!("{POLICIES}\n[[rule]]\nmatch = ['path=/search', 'remote_addr']\npolicy = 'requests'\n");
    files.write("policies.toml", &rules);
    let report = files.json(&[
        "--rules",
        "--key",
        "path,remote_addr",
        "--suggest",
        "--max-denied-keys",
        "0.1%",
    ]);
    let suggestions = report["suggestions"].as_array().unwrap();
    assert_eq!(suggestions.len(), 1);
    assert_eq!(suggestions[0]["policy"], "requests");
    assert_eq!(
        (&suggestions[0]["calls"], &suggestions[0]["keys"]),
        (&6.into(), &1.into())
    );
    assert_eq!(suggestions[0]["target"], "no call denied for 99.9 % of keys");
}

#[test]
fn errors_name_file_value_and_expectation() {
    let files = Files::new();
    let missing = files.path("missing.log");
    for (args, expected) in [
        (&["--log", missing.as_str()][..], "missing.log: No such file"),
        (
            &["--policy", "serach"],
            "has no policy `serach`, expected one of export, requests",
        ),
        (
            &["--policy", "export"],
            "`export` is a concurrency policy, expected a policy of rates",
        ),
        (&["--rules"], "has no rules, expected [[rule]]"),
        (
            &["--key", "user"],
            "the combined format has no field `user`, expected one of remote_addr",
        ),
        (&["--format", "json"], "no line of"),
        (&["--compare", missing.as_str()], "cannot read the policy file"),
    ] {
        let (code, output, errors) = files.replay(args);
        assert_eq!((code, output.as_str()), (Some(1), ""), "{args:?}");
        assert!(errors.contains(expected), "{expected} in {errors}");
    }
    let (code, _, errors) = files.replay(&["--format", "xml"]);
    assert_eq!(code, Some(2));
    assert!(
        errors.contains("`xml` is no format, expected combined, json or logfmt"),
        "{errors}"
    );
    let (code, ..) = files.replay(&["--policy", "requests", "--rules"]);
    assert_eq!(code, Some(2));
}

/// A registry in force contains the policies that were deleted, as ended ones. They decide no line
/// after their end.
#[test]
fn ended_policy_decides_no_line_after_its_end() {
    let files = Files::new();
    let deleted = "[policy.deleted]\nalgorithm = 'token_bucket'\ncapacity = 1\nrate = '1/h'\n";
    files.write(
        "policies.toml",
        &format!("{POLICIES}\n{deleted}until = 2026-01-01T12:00:02Z\n"),
    );
    let report = files.json(&[]);
    let result = &report["results"][0];
    assert_eq!(
        (&result["admitted"], &result["denied"], &result["undecided"]),
        (&2.into(), &5.into(), &0.into()),
        "{result}"
    );
    let policies = result["policies"].as_array().unwrap();
    let of_deleted = policies.iter().find(|of| of["name"] == "deleted").unwrap();
    assert_eq!(
        (&of_deleted["admitted"], &of_deleted["denied"]),
        (&1.into(), &1.into()),
        "{of_deleted}"
    );
}

#[test]
fn policy_of_other_apps_needs_the_app() {
    let files = Files::new();
    files.write(
        "policies.toml",
        &POLICIES.replace("rate = '1/min'", "rate = '1/min'\napps = ['shop', 'web']"),
    );
    let (code, _, errors) = files.replay(&["--policy", "requests"]);
    assert_eq!(code, Some(1));
    assert!(
        errors.contains("`requests` is for the apps shop, web, expected one of them in --app"),
        "{errors}"
    );
    let report = files.json(&["--policy", "requests", "--app", "web"]);
    assert_eq!(report["results"][0]["denied"], 4);
}

/// A report without a policy of the file would look like one in which it denies nothing.
#[test]
fn policies_of_other_apps_are_named() {
    let files = Files::new();
    let of_shop =
        "[policy.shop]\nalgorithm = 'token_bucket'\ncapacity = 1\nrate = '1/min'\napps = ['shop']\n";
    files.write("policies.toml", &format!("{POLICIES}{of_shop}"));
    let report = files.json(&[]);
    assert_eq!(
        report["results"][0]["other_apps"],
        serde_json::json!(["shop"]),
        "{report}"
    );
    let (_, output, _) = files.replay(&[]);
    assert!(
        output.contains("policies of other apps are not replayed, name an app by --app: shop"),
        "{output}"
    );
    let report = files.json(&["--app", "shop"]);
    assert_eq!(
        report["results"][0]["other_apps"],
        serde_json::json!([]),
        "{report}"
    );
}
