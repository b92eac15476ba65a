//! The commands `check`, `explain` and `import envoy`: exit codes and messages.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use limiter_core::Limiter;
use limiter_testing::RedisServer;
use support::server::{Directory, command, run};

const POLICIES: &str = "
[policy.login]
algorithm = 'sliding_window'
limit = 5
window = '1m'

[policy.all]
algorithm = 'sliding_window'
limit = 50
window = '1m'
group = 'all'

[policy.export]
algorithm = 'concurrency'
max = 2

[[rule]]
domain = 'edge'
match = ['route=login', 'remote_address']
policy = 'login'

[[rule]]
domain = 'edge'
match = ['route=login']
policy = 'all'
";

fn run_on(text: &str, name: &str, args: impl Fn(&str) -> Vec<String>) -> (Option<i32>, String, String) {
    let directory = Directory::new();
    let path = directory.write(name, text);
    let args = args(path.to_str().unwrap());
    run(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn check(text: &str) -> (Option<i32>, String, String) {
    run_on(text, "policies.toml", |path| {
        vec!["check".to_owned(), path.to_owned()]
    })
}

fn explain(text: &str, args: &str) -> (Option<i32>, String, String) {
    run_on(text, "policies.toml", |path| {
        let fixed = ["explain", "--policies", path].map(str::to_owned);
        let args = args.split_whitespace().map(str::to_owned);
        fixed.into_iter().chain(args).collect()
    })
}

#[test]
fn check_reports_limits_that_are_not_decided_atomically() {
    let (code, output, errors) = check(POLICIES);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(output.contains("policies: 3, rules: 2"), "{output}");
    assert!(
        output.contains("note: edge: limits of these rules have no common group")
            && output.contains("rule[0] login, rule[1] all"),
        "{output}"
    );
    let grouped = POLICIES.replace("policy = 'login'\n", "policy = 'login'\ngroup = 'all'\n");
    let (_, output, _) = check(&grouped);
    assert!(!output.contains("note"), "{output}");
}

#[test]
fn file_for_newer_programs_is_named() {
    let (code, _, errors) = check("min_reader = 9\n");
    assert_eq!(code, Some(1));
    assert!(
        errors.contains("policies.toml: the text needs a reader of format 9"),
        "{errors}"
    );
}

#[test]
fn check_combines_rules_of_all_domains_with_those_of_each() {
    let policy =
        |name: &str| format!("[policy.{name}]\nalgorithm = 'token_bucket'\ncapacity = 1\nrate = 1\n");
    let rule = |domain: &str, name: &str| {
        let domain = match domain {
            "" => String::new(),
            domain => format!("domain = '{domain}'\n"),
        };
        format!("[[rule]]\n{domain}match = ['{name}']\npolicy = '{name}'\n")
    };
    let text = [policy("a"), policy("b"), rule("edge", "a"), rule("", "b")].concat();
    let (code, output, _) = check(&text);
    assert_eq!(code, Some(0));
    assert!(
        output.contains("note: edge: limits of these rules have no common group")
            && output.contains("rule[0] a, rule[1] b"),
        "{output}"
    );
    assert!(!output.contains("any other domain"), "one rule alone: {output}");
    // Rules of two domains never apply to one request.
    let text = [policy("a"), policy("b"), rule("edge", "a"), rule("mail", "b")].concat();
    let (_, output, _) = check(&text);
    assert!(!output.contains("note"), "{output}");
    let text = [text, policy("c"), policy("d"), rule("", "c"), rule("", "d")].concat();
    let (_, output, _) = check(&text);
    for (domain, rules) in [
        ("edge", "rule[0] a, rule[2] c, rule[3] d"),
        ("mail", "rule[1] b, rule[2] c, rule[3] d"),
        ("any other domain", "rule[2] c, rule[3] d"),
    ] {
        let note = output
            .lines()
            .find(|line| line.starts_with(&format!("note: {domain}: ")));
        assert!(note.unwrap().ends_with(rules), "{domain}: {output}");
    }
    let (_, output, _) = check(include_str!("../../docs/guide/envoy.toml"));
    assert!(output.contains("note: "), "{output}");
}

#[test]
fn check_reports_large_groups_and_the_default_mapping() {
    let policy = |number: usize, group: &str| {
        format!("[policy.p{number}]\nalgorithm = 'token_bucket'\ncapacity = 1\nrate = 1\n{group}")
    };
    let rules = |count: usize| {
        let one = |number| {
            let policy = policy(number, "group = 'all'\n");
            format!("{policy}[[rule]]\nmatch = ['k{number}']\npolicy = 'p{number}'\n")
        };
        (0..count).map(one).collect::<String>()
    };
    let (_, output, _) = check(&rules(16));
    assert!(!output.contains("note"), "{output}");
    let (code, output, _) = check(&rules(17));
    assert_eq!(code, Some(0));
    assert!(
        output.contains("note: any domain: 17 rules have the group all") && output.contains("sets of 16"),
        "{output}"
    );
    let (_, output, _) = check(&[policy(0, ""), policy(1, "")].concat());
    assert!(output.contains("note: the file has no rule"), "{output}");
    let (_, output, _) = check(&policy(0, ""));
    assert!(!output.contains("note"), "{output}");
    let (_, output, _) = check(&[policy(0, "group = 'a'\n"), policy(1, "group = 'a'\n")].concat());
    assert!(!output.contains("note"), "{output}");
}

#[test]
fn check_reports_rules_that_are_never_used() {
    let rules = format!("{POLICIES}\n[[rule]]\ndomain = 'edge'\nmatch = ['route=login']\npolicy = 'login'\n");
    let (code, output, _) = check(&rules);
    assert_eq!(code, Some(0));
    assert!(
        output.contains("warning: rule[2] is never used, because rule[1]"),
        "{output}"
    );
}

#[test]
fn check_rejects_rules_on_concurrency_policies() {
    let (code, output, errors) = check(&POLICIES.replace("policy = 'login'", "policy = 'export'"));
    assert_eq!((code, output.as_str()), (Some(1), ""));
    assert!(
        errors.contains(":20:10: rule[0].policy is 'export', expected a policy that is not of concurrency"),
        "{errors}"
    );
}

#[test]
fn explain_prints_rule_policy_key_and_values() {
    let (code, output, errors) = explain(POLICIES, "--domain edge route=login remote_address=1.2.3.4");
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    for expected in [
        "rule: rule[0], match route=login, remote_address\n",
        "policy: login (sliding window: 5 in any 1m)\n",
        "key: 1.2.3.4\n",
        "values: [\"1.2.3.4\"]\n",
        "atomic: with limits of the same key",
    ] {
        assert!(output.contains(expected), "{expected} in {output}");
    }
    let (_, output, _) = explain(POLICIES, "--domain edge route=login");
    assert!(
        output.contains("atomic: with the limits of group all"),
        "{output}"
    );
}

#[test]
fn explain_fails_without_a_limit() {
    let (code, _, errors) = explain(POLICIES, "--domain api route=login");
    assert_eq!(code, Some(1));
    assert!(errors.contains("no rule of"), "{errors}");
    let (code, output, errors) = explain(
        "policy.search = { algorithm = 'token_bucket', capacity = 5, rate = 1 }",
        "--domain api generic_key=serach",
    );
    assert_eq!(code, Some(1));
    assert!(output.contains("the default mapping applies"), "{output}");
    assert!(errors.contains("serach, which is not configured"), "{errors}");
    let (code, _, errors) = explain(POLICIES, "--domain api login");
    assert_eq!(code, Some(2), "{errors}");
}

#[test]
fn imported_configuration_passes_check() {
    let yaml = "
domain: edge
descriptors:
  - key: route
    value: login
    rate_limit: {unit: minute, requests_per_unit: 5}
    descriptors:
      - key: remote_address
        rate_limit: {unit: year, requests_per_unit: 1000}
";
    let import = |text: &str| {
        run_on(text, "ratelimit.yaml", |path| {
            ["import", "envoy", path].map(str::to_owned).to_vec()
        })
    };
    let (code, output, errors) = import(yaml);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{output}");
    assert!(output.contains("window = \"365d\"\nalign = \"UTC\""), "{output}");
    let (code, summary, errors) = check(&output);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{output}");
    assert!(summary.contains("policies: 2, rules: 2"), "{summary}");
    let (_, explained, _) = explain(&output, "--domain edge route=login remote_address=a");
    assert!(
        explained.contains("edge/route=login/remote_address"),
        "{explained}"
    );

    let (code, output, errors) = import("domain: edge\ndescriptors: 7");
    assert_eq!((code, output.as_str()), (Some(1), ""));
    assert!(errors.contains("ratelimit.yaml"), "{errors}");
    let (code, _, errors) = run(&["import", "envoy", "/nonexistent.yaml"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("cannot read"), "{errors}");
}

#[test]
fn explain_reads_the_registry_in_redis() {
    let redis = RedisServer::start();
    let args = [
        "explain",
        "--redis",
        &redis.url(),
        "--namespace",
        "prod",
        "--domain",
        "edge",
        "route=login",
    ];
    let (code, _, errors) = run(&args);
    assert_eq!(code, Some(1));
    assert!(errors.contains("prod of Redis has no registry"), "{errors}");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let limiter = Limiter::redis(redis.url()).namespace("prod").build().unwrap();
        let text = "[policy.login]\nalgorithm = 'sliding_window'\nlimit = 5\nwindow = '1m'\n\
                    [[rule]]\nmatch = ['route']\npolicy = 'login'\n";
        limiter.redis_registry().unwrap().publish(text, 0).await.unwrap();
    });
    let (code, output, errors) = run(&args);
    assert_eq!(code, Some(0), "{errors}");
    assert!(output.contains("policy: login"), "{output}");
    assert!(output.contains("key: login"), "{output}");
    let directory = Directory::new();
    let file = directory.write("redis-url", &format!("{}\n", redis.url()));
    let with_file = args.map(|of| match of {
        "--redis" => "--redis-file".to_owned(),
        of if of.starts_with("redis:") => file.display().to_string(),
        of => of.to_owned(),
    });
    let (code, from_file, errors) = run(&with_file.each_ref().map(String::as_str));
    assert_eq!((code, from_file), (Some(0), output), "{errors}");
}

/// The exported file needs Redis only, and passes `check`.
#[test]
fn export_prints_the_registry_in_force() {
    let redis = RedisServer::start();
    let url = redis.url();
    let args = ["export", "--redis", &url, "--namespace", "prod"];
    let (code, output, errors) = run(&args);
    assert_eq!((code, output.as_str()), (Some(1), ""));
    assert!(errors.contains("prod of Redis has no registry"), "{errors}");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let limiter = Limiter::redis(&url).namespace("prod").build().unwrap();
        limiter
            .redis_registry()
            .unwrap()
            .publish(POLICIES, 0)
            .await
            .unwrap();
    });
    let (code, output, errors) = run(&args);
    assert_eq!(code, Some(0), "{errors}");
    for part in ["[policy.login]", "[policy.export]", "remote_address"] {
        assert!(output.contains(part), "{output}");
    }
    assert_eq!(check(&output).0, Some(0), "{output}");
    let (code, _, errors) = run(&["export"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("set --redis"), "{errors}");
}

/// A reader such as `head` ends before a command has printed everything.
#[test]
fn command_ends_without_a_panic_if_its_output_is_closed() {
    let directory = Directory::new();
    let path = directory.write("policies.toml", POLICIES);
    let file = path.to_str().unwrap();
    for args in [
        &["check", file][..],
        &["explain", "--policies", file, "--domain", "edge", "route=login"],
        &["completions", "bash"],
        &["token", "new", "--name", "edge", "--scope", "check:*"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command().args(args).stdout(writer).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {errors}");
    }
}

/// The code blocks of a page in a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let blocks = page.split(fence.as_str()).skip(1);
    let blocks = blocks.filter_map(|rest| rest.split("```").next());
    blocks.map(str::to_owned).collect()
}

#[test]
fn policy_files_of_the_guide_pass_check() {
    let pages = [
        include_str!("../../docs/guide/policy-file.md"),
        include_str!("../../docs/guide/server.md"),
        include_str!("../../docs/guide/forward-auth.md"),
        include_str!("../../docs/guide/from-policy-table.md"),
        include_str!("../../docs/guide/from-envoy-ratelimit.md"),
    ];
    for page in pages {
        let mut files = blocks(page, "toml");
        files.retain(|file| file.contains("[policy."));
        assert!(!files.is_empty(), "{page}");
        for file in files {
            let (code, _, errors) = check(&file);
            assert_eq!((code, errors.as_str()), (Some(0), ""), "{file}");
        }
    }
}

#[test]
fn conversion_of_the_guide_matches_the_command() {
    let page = include_str!("../../docs/guide/from-envoy-ratelimit.md");
    let (yaml, toml) = (blocks(page, "yaml"), blocks(page, "toml"));
    let (code, output, errors) = run_on(yaml.first().unwrap(), "ratelimit.yaml", |path| {
        ["import", "envoy", path].map(str::to_owned).to_vec()
    });
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(Some(output.trim()), toml.first().map(|text| text.trim()));
}

#[test]
fn errors_name_the_file() {
    let (code, _, errors) = check("[policy.a]\nalgorithm = 'token_bucket'\ncapacity = 0\nrate = '1/s'\n");
    assert_eq!(code, Some(1));
    assert!(errors.contains("policies.toml:3:"), "{errors}");
}

#[test]
fn check_warns_of_a_file_without_policies() {
    let (code, output, errors) = check("");
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(output.contains("policies: 0, rules: 0"), "{output}");
    assert!(output.contains("warning: the file has no policy"), "{output}");
    assert!(!check(POLICIES).1.contains("no policy"));
}

#[test]
fn output_to_an_ended_reader_is_no_error() {
    let directory = Directory::new();
    let path = directory.write("policies.yaml", "domain: a\ndescriptors: []\n");
    let mut child = support::server::command()
        .args(["import", "envoy", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !errors.contains("panicked") && !errors.contains("pipe"),
        "{errors}"
    );
}

/// All test files of a crate: path and text.
fn test_files(directory: &Path, files: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            test_files(&path, files);
        } else if path.extension().is_some_and(|of| of == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            files.push((path, text));
        }
    }
}

/// Returns whether files have a test function of this name, or one that a list of a suite runs.
fn has_test(files: &[&str], name: &str) -> bool {
    let defined = format!("fn {name}(");
    let is_listed = |line: &str| line.trim().trim_end_matches(',').rsplit("::").next() == Some(name);
    let is_in_list = files.iter().any(|text| text.lines().any(is_listed));
    files.iter().any(|text| {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let Some(position) = lines.iter().position(|line| line.contains(&defined)) else {
            return false;
        };
        let mut attributes = lines
            .iter()
            .take(position)
            .rev()
            .take_while(|line| line.starts_with("#[") || line.starts_with("///"));
        is_in_list || attributes.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    })
}

/// The guide names a test for each request of users, as `FILE NAME`.
#[test]
fn tests_that_the_guide_names_exist() {
    let page = include_str!("../../docs/guide/control-plane.md");
    let (_, table) = page.split_once("| request | command | test |").unwrap();
    let rows = table
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with('|'));
    let tests = rows.filter_map(|line| line.trim_end_matches('|').rsplit('|').next());
    let spans = tests.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let mut files = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for tests in ["tests", "../limiter-core/tests"] {
        test_files(&root.join(tests), &mut files);
    }
    let mut found = 0;
    for span in spans {
        let (file, name) = span.split_once(' ').unwrap_or(("support", span));
        let is_in_file = |path: &Path| {
            let mut parts = path.components().filter_map(|of| of.as_os_str().to_str());
            parts.any(|part| part.trim_end_matches(".rs") == file)
        };
        let of_file = files.iter().filter(|(path, _)| is_in_file(path));
        let texts: Vec<&str> = of_file.map(|(_, text)| text.as_str()).collect();
        assert!(has_test(&texts, name), "{span}");
        found += 1;
    }
    assert!(found >= 20, "{found}");
}
