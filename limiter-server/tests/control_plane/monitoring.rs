//! The alerts and the dashboard use metrics that a running server exports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use limiter_server::access::Expiry;
use limiter_testing::RedisServer;
use serde::Deserialize;
use serde_json::Value;

use crate::support::access;
use crate::support::admin::AdminClient;
use crate::support::http;
use crate::support::server::{Directory, Server, wait_until};

const ALERTS: &str = include_str!("../../monitoring/alerts.yml");
const DASHBOARD: &str = include_str!("../../monitoring/dashboard.json");

/// A file of alerting rules of Prometheus.
#[derive(Debug, Deserialize)]
struct AlertFile {
    groups: Vec<AlertGroup>,
}

#[derive(Debug, Deserialize)]
struct AlertGroup {
    name: String,
    rules: Vec<AlertRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AlertRule {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    duration: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[test]
fn alerts_are_rules_of_prometheus_with_severity_and_summary() {
    let file: AlertFile = serde_saphyr::from_str(ALERTS).unwrap();
    let mut names = BTreeSet::new();
    for group in &file.groups {
        assert!(!group.name.is_empty());
        for rule in &group.rules {
            assert!(names.insert(&rule.alert), "{} twice", rule.alert);
            assert!(!names_in(&rule.expr).is_empty(), "{rule:?}");
            let brackets = |of: char| rule.expr.matches(of).count();
            assert_eq!(brackets('('), brackets(')'), "{}", rule.expr);
            let severity = rule.labels.get("severity").map(String::as_str);
            assert!(matches!(severity, Some("warning" | "critical")), "{rule:?}");
            let summary = rule.annotations.get("summary");
            assert!(summary.is_some_and(|text| !text.is_empty()), "{rule:?}");
            let unit = rule.duration.as_deref().and_then(|text| text.chars().last());
            assert!(matches!(unit, None | Some('s' | 'm' | 'h')), "{rule:?}");
        }
    }
    assert!(names.len() > 6, "{names:?}");
}

/// The names of metrics in a text.
fn names_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("limiter_")).collect()
}

#[test]
fn alerts_and_dashboard_use_exported_metrics() {
    let redis = RedisServer::start();
    let directory = Directory::new();
    // Nothing listens at this port.
    directory.write("limiter-server.toml", "[webhook]\nurl = 'http://127.0.0.1:9/'\n");
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let redis = redis.url();
    let args = ["--database", &url, "--redis", &redis, "--admin", "127.0.0.1:0"];
    let server = Server::start(directory, &args);
    let names: BTreeSet<&str> = names_in(ALERTS).union(&names_in(DASHBOARD)).copied().collect();
    assert!(names.len() > 8, "{names:?}");
    let missing = || {
        let metrics = server.get("/metrics").body;
        let exported = names_in(&metrics).into_iter().map(str::to_owned);
        let exported: BTreeSet<String> = exported.collect();
        let missing = names.iter().filter(|name| !exported.contains(**name));
        missing.map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    wait_until(
        || missing().is_empty(),
        || format!("{:?}\n{}", missing(), server.log()),
    );
    let up = "limiter_server_redis_up{namespace=\"default\"}";
    wait_until(|| server.metric(up) > 0.5, || server.log());
    assert!(server.metric("limiter_server_database_up") > 0.5);
}

#[test]
fn node_without_a_gateway_exports_the_metrics_of_the_control_plane() {
    let server = crate::support::admin::with_sqlite(&["--role", "admin", "--standalone"]);
    let metrics = |host| http::get(server.admin(), "/metrics", &[("host", host)]).unwrap();
    let is_exported = || {
        let answer = metrics("localhost");
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body.contains("limiter_server_database_up 1\n")
    };
    wait_until(is_exported, || server.log());
    assert_eq!(metrics("evil.example").status, 400);
    // A node with a gateway exports them on its HTTP listener alone.
    let server = crate::support::admin::with_sqlite(&["--standalone"]);
    let answer = http::get(server.admin(), "/metrics", &[("host", "localhost")]).unwrap();
    assert!(!answer.body.contains("limiter_server_"), "{}", answer.body);
}

#[test]
fn alerts_cover_the_states_of_the_control_plane() {
    for metric in [
        "limiter_server_outbox_age_seconds",
        "limiter_server_suspensions",
        "limiter_server_descriptors_total",
        "limiter_server_subscribers_behind",
        "limiter_server_token_expiry_seconds",
        "limiter_server_database_up",
        "limiter_server_redis_up",
    ] {
        assert!(names_in(ALERTS).contains(metric), "{metric}");
        assert!(names_in(DASHBOARD).contains(metric), "{metric}");
    }
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 6);
}

#[test]
fn metrics_show_suspensions_tokens_and_lost_redis() {
    let mut redis = Some(RedisServer::start());
    let url = redis.as_ref().unwrap().url();
    let directory = Directory::new();
    let in_20_days = Expiry::days_after(SystemTime::now(), 20).to_string();
    let token = access::entry("edge", access::TOKEN, &["check:*"]).replace("2100-01-01", &in_20_days);
    directory.write("limiter-server.toml", &token);
    let database = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let args = ["--redis", &url, "--namespace", "prod"];
    let server = crate::support::admin::with_database(directory, &database, &args);
    let root = AdminClient::set_up(&server);
    let metric = |name: &str| server.metric(&format!("{name}{{namespace=\"prod\"}}"));
    let expiry = || metric("limiter_server_token_expiry_seconds");
    // The token of the settings file.
    wait_until(|| (20.0..=21.0).contains(&(expiry() / 86_400.0)), || server.log());
    let body = serde_json::json!({ "scope": "all", "enforcement": "off", "for_seconds": 600 });
    let created = root.send("POST", "/namespaces/prod/suspensions", &[], &body);
    assert_eq!(created.status, 200, "{}", created.body);
    let body = serde_json::json!({ "name": "ci", "scopes": ["check:*"], "expires_in_days": 10 });
    let created = root.send("POST", "/namespaces/prod/tokens", &[], &body);
    assert_eq!(created.status, 201, "{}", created.body);
    wait_until(|| metric("limiter_server_suspensions") > 0.5, || server.log());
    wait_until(|| (9.0..=10.0).contains(&(expiry() / 86_400.0)), || server.log());
    redis.take();
    wait_until(|| metric("limiter_server_redis_up") < 0.5, || server.log());
    assert!(http::get(server.http(), "/metrics", &[]).is_ok());
}
