//! The size of pages and the time of long lists.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::demo::Demo;
use crate::support::server::Directory;

/// The largest page with all that it loads, compressed.
const MAX_BYTES: usize = 150_000;
/// The number of policies of the long list.
const POLICIES: usize = 1_000;
/// The largest time until the first byte of a page with a long list, in an optimised build.
const MAX_TIME: Duration = Duration::from_millis(50);

/// The assets that a page loads.
fn assets(page: &str) -> BTreeSet<String> {
    let names = page.split("\"/assets/").skip(1);
    let names = names.map(|rest| rest.split('"').next().unwrap_or_default());
    names.map(|name| format!("/assets/{name}")).collect()
}

/// The bytes of an answer, compressed.
fn length(browser: &Browser, path: &str) -> usize {
    let answer = browser.send_raw("GET", path, &[("accept-encoding", "gzip")], "");
    assert!(answer.head.starts_with("HTTP/1.1 200"), "{path}: {}", answer.head);
    answer.body.len()
}

/// The bytes of a page with its assets.
fn weight(browser: &Browser, path: &str) -> usize {
    let assets = assets(&browser.get(path).body);
    length(browser, path) + assets.iter().map(|of| length(browser, of)).sum::<usize>()
}

#[test]
fn page_with_a_full_plot_is_light() {
    let demo = Demo::start();
    let mut browser = Browser::new(demo.admin);
    let fields = [("user", "demo"), ("password", demo.password.as_str())];
    assert_eq!(browser.post("/signin", &fields).status, 303);
    let path = "/admin/v1/namespaces/default/policies/search/usage?span=minute";
    let points = browser.get(path).body.matches("\"at\":").count();
    assert!(points >= 1_440, "{points} points");
    let page = "/e/default/policies/search";
    let (of_page, of_points) = (weight(&browser, page), length(&browser, path));
    println!("{page}: {of_page} bytes, {of_points} bytes of {points} points");
    assert!(of_page + of_points < MAX_BYTES, "{of_page} and {of_points} bytes");
}

#[test]
fn pages_are_light_and_long_lists_are_fast() {
    let text = |count: usize| {
        let policies = (0..count).map(|number| {
            let app = format!("app{:02}", number % 20);
            policy(&format!("policy{number:04}"), 5, &app)
        });
        policies.collect::<String>()
    };
    let start = |count: usize| {
        let directory = Directory::new();
        let path = directory.write("policies.toml", &text(count));
        let server = with_sqlite(&["--policies", path.to_str().unwrap()]);
        let root = AdminClient::set_up(&server);
        let browser = Browser::signed_in(&server, "root");
        (server, root, browser)
    };
    let (short, long) = (start(1), start(POLICIES));
    let pages = [
        "/e/default/now",
        "/e/default/apps",
        "/e/default/apps/app00",
        "/e/default/search?q=policy",
        "/e/default/suspended",
        "/e/default/changes",
        "/e/default/policies/policy0000",
    ];
    // The first byte comes with the whole page, which is rendered at once.
    let time = |browser: &Browser, path: &str| {
        let times = (0..5).map(|_| {
            let started = Instant::now();
            assert_eq!(browser.get(path).status, 200, "{path}");
            started.elapsed()
        });
        let mut times: Vec<Duration> = times.collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    for path in pages {
        let (before, after) = (time(&short.2, path), time(&long.2, path));
        let bytes = weight(&long.2, path);
        println!("{path}: {bytes} bytes, {before:?} with 1 policy, {after:?} with {POLICIES}");
        assert!(bytes < MAX_BYTES, "{path}: {bytes} bytes");
        // Unoptimised code is slower by a factor that depends on the machine.
        if !cfg!(debug_assertions) {
            assert!(after < MAX_TIME, "{path}: {after:?}");
        }
    }
}
