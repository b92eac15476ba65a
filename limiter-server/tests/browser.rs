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

/// The largest count of the denied calls that the plot shows.
const PLOTTED_DENIALS: &str = "
    const plot = document.querySelector('figure[data-plot]');
    return plot && plot.dataset.drawn ? Number(plot.dataset.denied || 0) : 0;";

#[test]
fn first_run_leads_to_a_plotted_denial_in_eight_clicks() {
    let server = with_sqlite(&[]);
    let mut browser = Chromium::start();
    let admin = format!("http://{}", server.admin());
    browser.open(&format!("{admin}/setup?token={}", setup_token(&server)));
    browser.require_accessible();
    browser.fill("input[name=password]", PASSWORD);
    browser.fill("input[name=repeated]", PASSWORD);
    browser.click("button >> Create");
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
    browser.wait_until("no denial in the plot", |browser| {
        browser.script(PLOTTED_DENIALS) == 3
    });
    assert!(browser.take_clicks() <= 8);
    browser.require_accessible();
    browser.require_quiet_console();
    browser.open(&format!("{admin}/e/default/now"));
    browser.wait_for("#denied a >> search");
    browser.require_accessible();
    browser.require_quiet_console();
}
