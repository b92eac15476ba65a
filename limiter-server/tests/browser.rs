//! The first run in a browser, up to the first denial that the pages show.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use serde_json::json;
use support::admin::{PASSWORD, setup_token, with_sqlite};
use support::chromium::Chromium;
use support::http;
use support::server::{Server, wait_until};

fn check(server: &Server) -> u16 {
    let body = json!({ "policy": "search", "key": "acme" }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

/// The counts of the calls in the range of the plot.
const PLOTTED: &str = "
    const plot = document.querySelector('figure[data-plot]');
    return plot && plot.dataset.drawn ? [Number(plot.dataset.allowed), Number(plot.dataset.denied)] : [];";

/// Creates the administrator by the link that the server printed.
fn set_up(browser: &mut Chromium, server: &Server) {
    let token = setup_token(server);
    browser.open(&format!("http://{}/setup?token={token}", server.admin()));
    browser.require_accessible();
    browser.fill("input[name=password]", PASSWORD);
    browser.fill("input[name=repeated]", PASSWORD);
    browser.click("button >> Create");
    browser.wait_for("h1 >> First run");
    browser.require_accessible();
}

#[test]
fn first_run_leads_to_plotted_test_calls_in_eight_clicks() {
    let server = with_sqlite(&[]);
    let mut browser = Chromium::start();
    set_up(&mut browser, &server);
    browser.fill("input[name=label]", "Staging");
    browser.click("button >> Save the name");
    browser.wait_for(".env >> Staging");
    browser.click("button >> Create the example app");
    browser.wait_for("pre >> /v1/check");
    browser.require_accessible();
    browser.click("button >> Send 10 test calls");
    browser.wait_for(".notice >> Of 10 test calls, 7 were allowed and 3 denied.");
    browser.wait_until("the calls are not in the plot", |browser| {
        browser.script(PLOTTED) == json!([7, 3])
    });
    assert!(browser.take_clicks() <= 8);
    browser.require_accessible();
    browser.require_quiet_console();
}

#[test]
fn saved_policy_leads_to_a_plotted_denial() {
    let server = with_sqlite(&[]);
    let mut browser = Chromium::start();
    set_up(&mut browser, &server);
    browser.click("a >> Start without policies");
    browser.wait_for("nav[aria-label=Sections]");

    // A policy that permits 7 calls, enforced from the start.
    browser.click("nav a >> Apps");
    browser.click("a >> New policy");
    browser.fill("input[name=name]", "search");
    browser.fill("input[name=requests]", "1");
    browser.fill("input[name=per]", "1h");
    browser.fill("input[name=burst]", "7");
    browser.click("input[name=enforcement][value=enforce]");
    browser.require_accessible();
    browser.click("button >> Preview");
    browser.click("#preview button >> Save");
    browser.wait_for("figure[data-plot]");
    wait_until(|| check(&server) == 200, || server.log());
    let statuses: Vec<u16> = (0..9).map(|_| check(&server)).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 429, 429, 429]);
    browser.wait_until("the calls are not in the plot", |browser| {
        browser.script(PLOTTED) == json!([7, 3])
    });
    browser.require_accessible();
    browser.require_quiet_console();
    browser.open(&format!("http://{}/e/default/now", server.admin()));
    browser.wait_for("#denied a >> search");
    browser.require_accessible();
    browser.require_quiet_console();
}
