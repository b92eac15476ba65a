//! The size of pages and the time of long lists. In a file of its own, because other tests would
//! delay the pages. Run by `cargo xtask server --all`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic, and prints its measurements"
)]

mod support;

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use support::admin::{AdminClient, policy, with_sqlite};
use support::browser::Browser;
use support::demo::Demo;
use support::server::Directory;

/// The largest page with all that it loads, compressed.
const MAX_BYTES: usize = 150_000;
/// The number of policies of the long list.
const POLICIES: usize = 1_000;
/// The policies of one page of a list.
const ROWS: usize = 100;
/// The largest time until the first byte of a page with a long list, in an optimised build.
const MAX_TIME: Duration = Duration::from_millis(50);

/// Waits until no other test runs.
fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

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

/// The time until the first byte of a page. It comes with the whole page, rendered at once.
fn time(browser: &Browser, path: &str) -> Duration {
    let times = (0..5).map(|_| {
        let started = Instant::now();
        assert_eq!(browser.get(path).status, 200, "{path}");
        started.elapsed()
    });
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Fails if a page of a server with many policies is large or, in an optimised build, slow.
fn require_light_and_fast(browser: &Browser, path: &str) {
    let (time, bytes) = (time(browser, path), weight(browser, path));
    println!("{path}: {bytes} bytes, {time:?}");
    assert!(bytes < MAX_BYTES, "{path}: {bytes} bytes");
    // Unoptimised code is slower by a factor that depends on the machine.
    if !cfg!(debug_assertions) {
        assert!(time < MAX_TIME, "{path}: {time:?}");
    }
}

/// The names of the policies in the list of a page.
fn listed(page: &str) -> Vec<String> {
    let rows = page
        .split("<th scope=\"row\"><a href=\"/e/default/policies/")
        .skip(1);
    let names = rows.map(|row| row.split('"').next().unwrap_or_default());
    names.map(str::to_owned).collect()
}

#[test]
fn app_of_a_thousand_policies_is_paged_and_searched() {
    let _alone = alone();
    let names: Vec<String> = (0..POLICIES).map(|number| format!("policy{number:04}")).collect();
    let text: String = names.iter().map(|name| policy(name, 5, "shop")).collect();
    let directory = Directory::new();
    let path = directory.write("policies.toml", &text);
    let server = with_sqlite(&["--policies", path.to_str().unwrap()]);
    let _root = AdminClient::set_up(&server);
    let browser = Browser::signed_in(&server, "root");
    let mut next = Some("/e/default/apps/shop".to_owned());
    let mut found = Vec::new();
    let mut pages = 0;
    while let Some(path) = next {
        let page = browser.get(&path).body;
        let rows = listed(&page);
        assert_eq!(rows.len(), ROWS, "{path}");
        found.extend(rows);
        require_light_and_fast(&browser, &path);
        let (_, end) = page.split_once("</table>").unwrap();
        next = end.contains(">More policies</a>").then(|| {
            let (_, href) = end.split_once("<p><a href=\"").unwrap();
            href.split('"').next().unwrap().to_owned()
        });
        pages += 1;
    }
    assert_eq!((found, pages), (names.clone(), POLICIES / ROWS));
    // The search filters all policies, and states the rest of a long result.
    for (text, expected) in [
        ("policy004", &names[40..50]),
        ("POLICY0999", &names[999..]),
        ("absent", &[]),
        ("policy", &names[..ROWS]),
    ] {
        let path = format!("/e/default/search?q={text}");
        let page = browser.get(&path).body;
        assert_eq!(listed(&page), expected, "{text}");
        let is_truncated = page.contains("More policies have this text in their name.");
        assert_eq!(is_truncated, text == "policy", "{text}");
        require_light_and_fast(&browser, &path);
    }
    for path in ["/e/default/apps", "/e/default/apps/shop/connect"] {
        require_light_and_fast(&browser, path);
    }
    // The state of 200 policies is read for one key, which takes longer than a list.
    let customers = "/e/default/customers?key=acme";
    let bytes = weight(&browser, customers);
    assert!(bytes < MAX_BYTES, "{customers}: {bytes} bytes");
    assert!(
        browser
            .get(customers)
            .body
            .contains("The first 200 by name are shown.")
    );
    let apps = browser.get("/e/default/apps").body;
    assert!(apps.contains("<td class=\"number\">1,000</td>"), "{apps}");
}

#[test]
fn page_with_a_full_plot_is_light() {
    let _alone = alone();
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
    let _alone = alone();
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
    for path in pages {
        println!("{path}: {:?} with 1 policy", time(&short.2, path));
        require_light_and_fast(&long.2, path);
    }
}
