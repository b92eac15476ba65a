//! Pages while the database does not answer.

use limiter_testing::RedisServer;
use serde_json::json;

use super::behaviour::{sign_in_at, url};
use super::measure::{Measures, THEMES, WINDOWS};
use super::support::admin::{AdminClient, policy, with_database};
use super::support::chromium::Chromium;
use super::support::databases::Database;
use super::support::http;
use super::support::server::{Directory, wait_until};

#[test]
fn pages_without_the_database_are_accessible_and_fit() {
    let (redis, database) = (RedisServer::start(), Database::postgres());
    let redis_url = redis.url();
    let server = with_database(
        Directory::new(),
        &database.create("outage"),
        &["--redis", &redis_url],
    );
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy("search", 5, "shop")).status,
        200
    );
    let body = json!({ "policy": "search", "key": "ann" }).to_string();
    let is_in_force =
        || http::post(server.http(), "/v1/peek", &[], &body).is_ok_and(|answer| answer.status == 200);
    wait_until(is_in_force, || server.log());
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    drop(database);
    browser.wait_until("the page is complete", |browser| {
        browser.open(&url(&server, "/e/default/apps"));
        browser.has("h1 >> Read-only")
    });
    let mut measures = Measures::default();
    for path in ["/e/default/apps", "/e/default/policies/search"] {
        for (width, height) in WINDOWS {
            browser.resize(width, height);
            for theme in THEMES {
                browser.use_theme(theme);
                browser.open(&url(&server, path));
                browser.wait_for("h1 >> Read-only");
                let shown = format!("{path} without the database at {width} in {theme}");
                measures.measure(&browser, (&shown, theme));
            }
        }
    }
    measures.require_no_problem();
}
