//! The pages and a browser with a user of the demonstration.

use std::path::PathBuf;

use super::support::chromium::Chromium;
use super::support::demo::Demo;

/// The pages of an environment that show content in the demonstration: name, path.
pub(crate) const PAGES: [(&str, &str); 29] = [
    ("sign-in", "/signin"),
    ("now", "/e/default/now"),
    ("apps", "/e/default/apps"),
    ("app", "/e/default/apps/search"),
    ("customers", "/e/default/customers?key=acme"),
    (
        "rules",
        "/e/default/rules?domain=edge&entries=route%3Dlogin,remote_address%3D192.0.2.1",
    ),
    ("rules-revision", "/e/default/rules/history/1"),
    ("explain", "/e/default/explain?policy=search&key=acme"),
    ("changes", "/e/default/changes"),
    ("status", "/e/default/status"),
    ("suspended", "/e/default/suspended"),
    (
        "suspend",
        "/e/default/suspended/confirm?scope=policy:search&enforcement=shadow&hours=1",
    ),
    ("search", "/e/default/search?q=s"),
    ("policy", "/e/default/policies/search"),
    ("policy-trial", "/e/default/policies/checkout"),
    ("connect", "/e/default/apps/search/connect"),
    ("edit", "/e/default/policies/search/edit"),
    ("edit-text", "/e/default/policies/search/edit?as=toml"),
    ("account", "/account"),
    ("failure", "/absent"),
    ("first-run", "/setup/start"),
    ("revision", "/e/default/policies/search/history/2"),
    ("new", "/e/default/new?app=search"),
    ("people", "/e/default/apps/search/people"),
    ("app-tokens", "/e/default/apps/search/tokens"),
    ("app-changes", "/e/default/apps/search/changes"),
    ("tokens", "/e/default/tokens"),
    ("settings", "/settings"),
    ("delete", "/e/default/policies/reports/delete"),
];

/// Signs a user of the demonstration in.
pub(crate) fn sign_in(browser: &mut Chromium, demo: &Demo, user: &str) {
    browser.open(&demo.url("/signin"));
    browser.fill("input[name=user]", user);
    browser.fill("input[name=password]", &demo.password);
    browser.click("button");
    browser.wait_for("nav[aria-label=Sections]");
    browser.take_clicks();
}

/// The directory of pictures: `SCREENSHOTS`, or else the target directory.
pub(crate) fn pictures() -> PathBuf {
    let directory = std::env::var_os("SCREENSHOTS").map(PathBuf::from);
    let directory =
        directory.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots"));
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}
