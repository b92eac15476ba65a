//! The visual rules of pages with all their forms open, and of pages that forms lead to.

use serde_json::json;

use super::layout::wait_for_plot;
use super::measure::{Measures, THEMES, WINDOWS};
use super::pages::sign_in;
use super::support::admin::AdminClient;
use super::support::chromium::Chromium;
use super::support::demo::Demo;

/// Opens all forms of the page. Refreshes end, because they would close some.
const OPEN_FORMS: &str = "
    window.fetch = () => new Promise(() => {});
    for (const form of document.querySelectorAll('details:not(.menu)')) form.open = true;";

const YAML: &str = "domain: mail\ndescriptors:\n  - key: route\n    value: send\n    rate_limit:\n      \
                    unit: minute\n      requests_per_unit: 5\n";

/// A page with forms: name, path, and the action that leads to the measured page.
type Panel = (&'static str, &'static str, fn(&mut Chromium));

const PANELS: [Panel; 21] = [
    ("policy", "/e/default/policies/search", stay),
    ("policy-trial", "/e/default/policies/checkout", stay),
    ("customers", "/e/default/customers?key=acme", stay),
    ("customers-part", "/e/default/customers?key=customer%3Dacme", stay),
    ("apps", "/e/default/apps", stay),
    ("connect", "/e/default/apps/search/connect", stay),
    ("people", "/e/default/apps/search/people", stay),
    ("app-tokens", "/e/default/apps/checkout/tokens", stay),
    ("tokens", "/e/default/tokens", stay),
    ("suspended", "/e/default/suspended", stay),
    ("settings", "/settings", stay),
    ("first-run", "/setup/start", stay),
    ("edit", "/e/default/policies/search/edit", stay),
    ("menu", "/e/default/now", open_menu),
    ("edit-preview", "/e/default/policies/search/edit", preview_policy),
    ("new-preview", "/e/default/new?app=search", preview_new),
    ("conflict", "/e/default/policies/search/edit", cause_conflict),
    ("rules-preview", "/e/default/rules", preview_rules),
    ("rules-revision", "/e/default/rules/history/1", stay),
    ("import-preview", "/setup/start", preview_import),
    ("token", "/e/default/apps/checkout/tokens", create_token),
];

fn stay(_: &mut Chromium) {}

fn open_menu(browser: &mut Chromium) {
    browser.click("#user summary");
    browser.wait_for("#user button >> Sign out");
}

fn preview_policy(browser: &mut Chromium) {
    // Large numbers, in the table of keys and in the curve as well.
    browser.fill("input[name=requests]", "2500000");
    browser.fill("input[name=burst]", "12000000");
    browser.click("button >> Preview");
    browser.wait_for("#preview svg.curve");
    browser.wait_for("#preview td >> 12,000,000");
    browser.wait_for("#preview h3 >> Warnings");
}

fn preview_new(browser: &mut Chromium) {
    browser.fill("input[name=name]", "downloads");
    browser.click("button >> Preview");
    browser.wait_for("#preview svg.curve");
}

fn cause_conflict(browser: &mut Chromium) {
    preview_policy(browser);
    browser.script("document.querySelector('#preview input[name=revision]').value = '1'");
    browser.click("#preview button >> Save");
    browser.wait_for("h1 >> Another author saved first");
}

fn preview_rules(browser: &mut Chromium) {
    let rule = "[[rule]]\ndomain = \"edge\"\nmatch = [\"route=a-route-with-a-long-name\", \"customer\"]\npolicy = \
                \"search\"\n";
    browser.fill("textarea[rows]", rule);
    browser.click("button >> Preview");
    browser.wait_for("#preview .diff");
}

fn preview_import(browser: &mut Chromium) {
    browser.fill("textarea[name=yaml]", YAML);
    browser.click("button >> Show the changes");
    browser.wait_for("button >> Save the policies and rules");
}

fn create_token(browser: &mut Chromium) {
    browser.fill("input[name=name]", "measured");
    browser.click("button >> Create");
    browser.wait_for("pre >> lim_");
}

/// Adds objects whose forms the demonstration does not show: a suspension shortly before its end, a
/// planned one, blocks, and a second revision of the rules.
fn add_objects(root: &AdminClient) {
    let hour = 3_600_000_000_i64;
    let now = root.get("/namespaces/default/status").json()["now"]
        .as_i64()
        .unwrap();
    let suspensions = [
        json!({ "scope": "policy:reports", "enforcement": "shadow", "for_seconds": 599, "reason": "a load test" }),
        json!({ "scope": "policy:login", "enforcement": "deny", "from": now + hour, "until": now + 2 * hour }),
    ];
    for body in suspensions {
        let saved = root.send("POST", "/namespaces/default/suspensions", &[], &body);
        assert_eq!(saved.status, 200, "{}", saved.body);
    }
    for body in [
        json!({ "key": "mallory", "app": "search", "reason": "an export of all customers" }),
        json!({ "network": "2001:db8:0:1::/64" }),
    ] {
        let saved = root.send("POST", "/namespaces/default/blocks", &[], &body);
        assert_eq!(saved.status, 200, "{}", saved.body);
    }
    let rules = root.get("/namespaces/default/rules").json();
    let rule = "\n[[rule]]\ndomain = 'edge'\nmatch = ['route=news', 'customer']\npolicy = 'search'\n";
    let text = rules["toml"].as_str().unwrap().to_owned() + rule;
    let body = json!({ "toml": text, "reason": "a second revision" });
    let saved = root.send("PUT", "/namespaces/default/rules", &[("if-match", "1")], &body);
    assert_eq!(saved.status, 200, "{}", saved.body);
}

#[test]
fn open_forms_are_accessible_and_fit_in_all_widths_and_themes() {
    let demo = Demo::start();
    add_objects(&demo.sign_in("demo"));
    let mut browser = Chromium::start();
    sign_in(&mut browser, &demo, "demo");
    let mut measures = Measures::default();
    for (name, path, act) in PANELS {
        for (width, height) in WINDOWS {
            browser.resize(width, height);
            browser.open(&demo.url(path));
            wait_for_plot(&browser);
            // Forms are open before the action, which may need one, and after it.
            browser.script(OPEN_FORMS);
            act(&mut browser);
            browser.script(OPEN_FORMS);
            for theme in THEMES {
                browser.use_theme(theme);
                let shown = format!("{name} with open forms at {width} in {theme}");
                measures.measure(&browser, (&shown, theme));
            }
        }
    }
    measures.require_no_problem();
}
