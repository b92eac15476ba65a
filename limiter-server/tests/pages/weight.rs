//! The size of pages and the time of long lists.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
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

/// The bytes of a page with its assets.
fn weight(browser: &Browser, path: &str) -> usize {
    let read = |path: &str| {
        let answer = browser.send_raw("GET", path, &[("accept-encoding", "gzip")], "");
        assert!(answer.head.starts_with("HTTP/1.1 200"), "{path}: {}", answer.head);
        answer.body.len()
    };
    let assets = assets(&browser.get(path).body);
    read(path) + assets.iter().map(|of| read(of)).sum::<usize>()
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
        times.min().unwrap_or_default()
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
