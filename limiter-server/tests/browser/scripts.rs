//! The scripts of the pages: refreshes, the age of numbers, times and the search.

use serde_json::{Value, json};

use super::behaviour::{sign_in_at, url};
use super::support::admin::{AdminClient, Credentials, policy_of_all, with_sqlite};
use super::support::chromium::{Chromium, keys};
use super::support::http;
use super::support::server::{Server, wait_until};

/// A server with a denied key, and a browser on the page of its policy.
pub(crate) fn with_denials() -> (Server, Chromium) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy_of_all("search", 1));
    wait_until(|| check(&server) == 429, || server.log());
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    browser.open(&url(&server, "/e/default/policies/search"));
    super::layout::wait_for_plot(&browser);
    browser.wait_for("#denied-keys th a");
    (server, browser)
}

pub(crate) fn check(server: &Server) -> u16 {
    let body = json!({ "policy": "search", "key": "acme" }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

/// The number of denials of the first key.
pub(crate) fn denied(browser: &Chromium) -> u64 {
    let script = "return Number(document.querySelector('#denied-keys td[data-label=Denied]').innerText)";
    browser.script(script).as_u64().unwrap()
}

/// Refreshes the page at once, as the browser does when its tab is shown.
pub(crate) fn refresh(browser: &Chromium) {
    browser.async_script(
        "const done = arguments[arguments.length - 1];
         const send = window.fetch;
         window.fetch = async (...request) => {
           const answer = await send(...request);
           window.fetch = send;
           if (answer.status === 304) done(true);
           return answer;
         };
         document.addEventListener('refreshed', () => done(true), { once: true });
         document.dispatchEvent(new Event('visibilitychange'));",
    );
}

#[test]
fn interrupted_refresh_is_repeated() {
    let (_server, browser) = with_denials();
    let condition = browser.async_script(
        "const done = arguments[arguments.length - 1];
         const send = window.fetch;
         const interrupt = (body) => body.error(new TypeError('network error'));
         let count = 0;
         window.fetch = async (resource, options) => {
           if (!options.headers['x-refresh']) return send(resource, options);
           count += 1;
           const headers = { etag: 'interrupted' };
           if (count === 1) return new Response(new ReadableStream({ start: interrupt }), { headers });
           window.fetch = send;
           done(options.headers['if-none-match'] ?? 'none');
           return send(resource, options);
         };
         document.dispatchEvent(new Event('visibilitychange'));",
    );
    assert_ne!(condition, "interrupted");
    refresh(&browser);
    browser.require_quiet_console();
}

#[test]
fn numbers_turn_grey_when_they_are_older_than_thirty_seconds() {
    let (_server, browser) = with_denials();
    let is_stale = |browser: &Chromium| {
        browser.script("return document.getElementById('denied-keys').classList.contains('stale')")
            == Value::Bool(true)
    };
    assert!(!is_stale(&browser));
    // No refresh succeeds, and 31 seconds pass.
    browser.script(
        "const now = Date.now;
         window.fetch = () => Promise.reject(new Error('offline'));
         Date.now = () => now() + 31000;",
    );
    browser.wait_until("numbers do not turn grey", is_stale);
    let age = browser.text("[data-age]");
    assert!(age.starts_with("3"), "{age}");
}

#[test]
fn part_with_the_focus_does_not_change() {
    let (server, browser) = with_denials();
    let before = denied(&browser);
    browser.script("document.querySelector('#denied-keys th a').focus()");
    assert_eq!(check(&server), 429);
    refresh(&browser);
    assert_eq!(denied(&browser), before);
    browser.script("document.activeElement.blur()");
    browser.wait_until("the number does not change", |browser| denied(browser) > before);
}

#[test]
fn open_page_of_a_key_records_one_look() {
    let (server, browser) = with_denials();
    let root = AdminClient::new(server.admin(), Credentials::None).sign_in("root");
    let looks = || {
        let audit = root.get("/namespaces/default/audit").body;
        audit.matches("key.read").count()
    };
    browser.open(&url(&server, "/e/default/customers?key=acme"));
    browser.wait_for("td[data-label=Left]");
    refresh(&browser);
    refresh(&browser);
    assert_eq!(looks(), 1);
}

#[test]
fn hidden_tab_does_not_poll() {
    let (_server, browser) = with_denials();
    let script = |is_hidden: bool| {
        format!(
            "let calls = 0;
             const send = window.fetch;
             window.fetch = (...request) => {{ calls += 1; return send(...request); }};
             Object.defineProperty(document, 'hidden', {{ value: {is_hidden}, configurable: true }});
             document.dispatchEvent(new Event('visibilitychange'));
             window.fetch = send;
             return calls;"
        )
    };
    assert_eq!(browser.script(&script(true)), 0);
    assert_eq!(browser.script(&script(false)), 1);
}

#[test]
fn search_has_a_shortcut() {
    let (_server, mut browser) = with_denials();
    for modifier in [keys::META, keys::CONTROL] {
        browser.script("document.activeElement.blur()");
        assert_ne!(browser.script("return document.activeElement.id"), "q");
        browser.press(&format!("{modifier}k"));
        assert_eq!(browser.script("return document.activeElement.id"), "q");
    }
    browser.insert_text("sear");
    browser.press(keys::ENTER);
    browser.wait_for("h1 >> Search: sear");
    browser.click("tbody th a >> search");
    browser.wait_for("h1 >> search");
    browser.require_quiet_console();
}

#[test]
fn times_are_in_the_zone_of_the_viewer() {
    let (server, browser) = with_denials();
    let zone = json!({ "timezoneId": "Asia/Kolkata" });
    browser.developer_tools("Emulation.setTimezoneOverride", &zone);
    browser.open(&url(&server, "/e/default/policies/search"));
    browser.wait_until("the time has no zone", |browser| {
        let shown = browser.text("#denied-keys time");
        shown.contains("GMT+5:30") || shown.contains("IST")
    });
    let title = browser.script("return document.querySelector('#denied-keys time').title");
    assert!(title.as_str().unwrap().ends_with("UTC"), "{title}");
}

/// The page may be painted before the script runs, so a text of another width would move content.
#[test]
fn local_times_have_the_format_of_the_server() {
    let (server, browser) = with_denials();
    browser.developer_tools("Emulation.setLocaleOverride", &json!({ "locale": "en-US" }));
    let utc = json!({ "timezoneId": "UTC" });
    browser.developer_tools("Emulation.setTimezoneOverride", &utc);
    browser.open(&url(&server, "/e/default/customers?key=acme"));
    browser.wait_until("the script has not shown the times", |browser| {
        let script = "return document.querySelectorAll('main time:not([title])').length";
        browser.script(script) == 0
    });
    let [shown, served] = ["document", "served"].map(|root| {
        let script = format!(
            "const request = new XMLHttpRequest();
             request.open('GET', location.href, false);
             request.send();
             const served = new DOMParser().parseFromString(request.responseText, 'text/html');
             const times = {root}.querySelectorAll('main time, main option[data-at]');
             return [...times].map(time => time.textContent);"
        );
        browser.script(&script)
    });
    assert_eq!(shown, served);
    assert!(shown.as_array().unwrap().len() > 4, "{shown}");
}
