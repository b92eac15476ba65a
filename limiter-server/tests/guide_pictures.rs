//! The pictures of the guides of quotas and of replay, taken in a browser, and the accessibility of
//! the pages. `SCREENSHOTS` names the directory of the pictures.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a test may panic"
)]

#[path = "replay/guide_log.rs"]
mod guide_log;
mod support;

use std::path::PathBuf;

use support::admin::{AdminClient, PASSWORD, with_sqlite};
use support::chromium::Chromium;
use support::http;
use support::quota::{QuotaClient, bucket_id, calls};
use support::server::{Directory, command, wait_until};

fn picture(name: &str) -> PathBuf {
    let directory = std::env::var_os("SCREENSHOTS").map(PathBuf::from);
    let directory =
        directory.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots"));
    std::fs::create_dir_all(&directory).unwrap();
    directory.join(name)
}

#[test]
fn picture_of_assignments_on_the_status_page() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let policy = "[policy.api]\nalgorithm = 'token_bucket'\ncapacity = 1000\nrate = '1000/s'\n";
    let saved = root.put_policy("api", 0, policy);
    assert_eq!(saved.status, 200, "{}", saved.body);
    let is_in_force = || {
        let body = r#"{"policy":"api","key":"first"}"#;
        http::post(server.http(), "/v1/check", &[], body).unwrap().status == 200
    };
    wait_until(is_in_force, || server.log());
    let demands = [4_000, 2_500, 400];
    let _clients = demands.map(|demand| {
        let first = calls(bucket_id(&[("api", "search")]), demand, 0);
        QuotaClient::open(server.grpc(), None, first).unwrap()
    });
    let rates = || {
        let rows = root.get("/namespaces/default/quota-assignments").json();
        let rows = rows["assignments"].as_array().unwrap().clone();
        let rate = |row: &serde_json::Value| row["rate_thousandths"].as_u64().unwrap();
        rows.iter().map(rate).collect::<Vec<u64>>()
    };
    // The small demand is met, and the others have nearly equal shares.
    let is_divided = || {
        let mut rates = rates();
        rates.sort_unstable();
        rates.len() == 3 && rates[0] >= 80_000 && rates[1] >= 380_000
    };
    wait_until(is_divided, || format!("{:?} {}", rates(), server.log()));

    let mut browser = Chromium::start();
    browser.resize(1100, 700);
    browser.open(&format!("http://{}/signin", server.admin()));
    browser.fill("input[name=user]", "root");
    browser.fill("input[name=password]", PASSWORD);
    browser.click("button");
    browser.wait_for("nav[aria-label=Sections]");
    browser.open(&format!("http://{}/e/default/status", server.admin()));
    browser.wait_for("#quota-streams td >> Assigned");
    browser.require_accessible();
    browser.require_quiet_console();
    browser.use_theme("light");
    browser.script("document.querySelector('#quota-streams').previousElementSibling.scrollIntoView();");
    browser.screenshot(&picture("rlqs-assignments.png"));
}

#[test]
fn picture_of_the_report_of_a_replay() {
    let directory = Directory::new();
    directory.write("limits.toml", guide_log::POLICIES);
    directory.write("access.log", &guide_log::log());
    let args = [
        "replay",
        "--suggest",
        "--key",
        "user",
        "--policies",
        "limits.toml",
    ];
    let replayed = command()
        .args(args)
        .args(["--log", "access.log", "--html", "report.html"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(replayed.status.success(), "{replayed:?}");
    let page = directory.path().join("report.html");
    let browser = Chromium::start();
    browser.resize(1100, 700);
    browser.open(&format!("file://{}", page.display()));
    browser.wait_for("h1");
    browser.require_accessible();
    browser.require_quiet_console();
    browser.use_theme("light");
    browser.screenshot(&picture("replay-report.png"));
    for theme in ["light", "dark"] {
        browser.use_theme(theme);
        browser.resize(360, 700);
        browser.require_accessible();
        let overflow = "return document.documentElement.scrollWidth - window.innerWidth;";
        assert!(browser.script(overflow).as_i64().unwrap() <= 0, "{theme}");
    }
}
