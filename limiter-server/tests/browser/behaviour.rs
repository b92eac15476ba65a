//! Roles, conflicts, hostile names, and browsers without scripts.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::pages::sign_in;
use super::support::admin::{AdminClient, PASSWORD, policy, policy_of_all, with_sqlite};
use super::support::chromium::{Chromium, keys};
use super::support::demo::Demo;
use super::support::http;
use super::support::server::{Server, wait_until};

/// Signs the administrator of a server in.
pub(crate) fn sign_in_at(browser: &mut Chromium, server: &Server, user: &str) {
    browser.open(&format!("http://{}/signin", server.admin()));
    browser.fill("input[name=user]", user);
    browser.fill("input[name=password]", PASSWORD);
    browser.click("button");
    browser.wait_for("nav[aria-label=Sections]");
}

pub(crate) fn url(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.admin())
}

/// The texts of links and buttons of the content.
fn actions(browser: &Chromium) -> Vec<String> {
    let script = "return [...document.querySelectorAll('main a.button, main button, main summary')]
        .map(element => element.innerText.trim())";
    let texts = browser.script(script);
    let texts = texts.as_array().cloned().unwrap_or_default();
    texts
        .iter()
        .map(|of| of.as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn pages_offer_the_actions_of_the_role() {
    let demo = Demo::start();
    let mut browser = Chromium::start();
    for (user, offered, hidden) in [
        (
            "demo",
            &["Edit", "Suspend", "Try other numbers", "Set the quota of a key"][..],
            &[][..],
        ),
        (
            "olivia",
            &["Edit", "Suspend", "Try other numbers", "Approve"],
            &[],
        ),
        (
            "eddie",
            &["Edit", "Set the quota of a key", "Withdraw"],
            &["Suspend", "Try other numbers", "Approve"],
        ),
        (
            "vera",
            &[],
            &["Edit", "Suspend", "Set the quota of a key", "Approve", "Withdraw"],
        ),
    ] {
        sign_in(&mut browser, &demo, user);
        browser.open(&demo.url("/e/default/policies/search"));
        browser.wait_for("h1 >> search");
        let shown = actions(&browser);
        for text in offered {
            assert!(shown.iter().any(|of| of == text), "{user}: no {text}: {shown:?}");
        }
        for text in hidden {
            assert!(!shown.iter().any(|of| of == text), "{user}: {text}");
        }
        browser.require_quiet_console();
        browser.click("#user summary");
        browser.click("button >> Sign out");
        browser.wait_for("input[name=password]");
        // A page that the browser kept is not shown after the sign-out.
        browser.back();
        browser.wait_for("input[name=password]");
    }
}

/// Opens the editor of a policy that exists.
fn edit_search() -> (Server, AdminClient, Chromium) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    browser.open(&url(&server, "/e/default/policies/search/edit"));
    (server, root, browser)
}

#[test]
fn second_of_two_editors_sees_both_versions() {
    let (_server, root, mut browser) = edit_search();
    browser.fill("input[name=burst]", "8");
    browser.click("button >> Preview");
    browser.wait_for("#preview");
    let saved = root.put_policy("search", 1, &policy("search", 6, "shop"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    browser.click("#preview button >> Save");
    browser.wait_for("h1 >> Another author saved first");
    browser.wait_for("h2 >> Saved version");
    browser.wait_for("h2 >> Your version");
    browser.require_accessible();
    browser.click("button >> Preview your version");
    browser.click("#preview button >> Save");
    browser.wait_for(".sentence >> bursts of 8");
    let current = root.get("/namespaces/default/policies/search").json();
    assert_eq!(current["revision"], 3);
}

#[test]
fn enter_key_previews_and_tabs_keep_the_typed_values() {
    let (_server, _root, mut browser) = edit_search();
    browser.fill("input[name=requests]", "many");
    browser.fill("input[name=burst]", "8");
    // A number that is none does not become a text, and stays in the form.
    browser.click("button >> TOML");
    browser.wait_for("[role=alert] >> expected a number");
    assert!(!browser.has("textarea"));
    browser.fill("input[name=requests]", "7");
    browser.click("button >> TOML");
    browser.wait_for("textarea[name=text]");
    let text = browser.script("return document.querySelector('textarea[name=text]').value");
    let text = text.as_str().unwrap();
    assert!(text.contains("7/1h") && text.contains("capacity = 8"), "{text}");
    browser.click("button >> Form");
    browser.wait_for("input[name=burst]");
    browser.script("document.querySelector('input[name=burst]').focus()");
    browser.press(keys::ENTER);
    browser.wait_for("#preview p >> bursts of 8");
    browser.require_accessible();
    browser.click("#preview button >> Save");
    browser.wait_for(".sentence >> 7 requests an hour, with bursts of 8");
}

#[test]
fn hostile_name_is_text_on_every_page() {
    const NAME: &str =
        "<script>document.title='attacked'</script><img src=x onerror=\"document.title='attacked'\">";
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let name: String = super::support::browser::encode(NAME);
    let text = format!(
        "[policy.{}]\nalgorithm = 'token_bucket'\ncapacity = 1\nrate = '1/h'\napps = ['shop']\n",
        json!(NAME)
    );
    let path = format!("/namespaces/default/policies/{name}");
    let saved = root.send("PUT", &path, &[("if-none-match", "*")], &json!({ "toml": text }));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let body = json!({ "policy": NAME, "key": NAME }).to_string();
    let denied = || http::post(server.http(), "/v1/check", &[], &body).is_ok_and(|of| of.status == 429);
    wait_until(denied, || server.log());
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    for page in [
        "/e/default/now".to_owned(),
        "/e/default/apps".to_owned(),
        "/e/default/apps/shop".to_owned(),
        "/e/default/apps/shop/connect".to_owned(),
        "/e/default/changes".to_owned(),
        "/e/default/suspended".to_owned(),
        format!("/e/default/search?q={name}"),
        format!("/e/default/customers?key={name}"),
        format!("/e/default/explain?policy={name}&key={name}"),
        format!("/e/default/policies/{name}"),
        format!("/e/default/policies/{name}/edit"),
        format!("/e/default/policies/{name}/history/1"),
    ] {
        browser.open(&url(&server, &page));
        browser.wait_for("h1");
        let title = browser.script("return document.title");
        assert!(!title.as_str().unwrap().starts_with("attacked"), "{page}");
        browser.require_quiet_console();
    }
}

/// The other tests accept a page without messages of the console, so a violation must cause one.
#[test]
fn injected_inline_script_is_blocked_and_reported() {
    const INJECTIONS: [&str; 2] = [
        "const script = document.createElement('script');
         script.textContent = 'document.title = \"attacked\"';
         document.body.append(script);
         return document.title;",
        "document.body.insertAdjacentHTML('beforeend', '<b onclick=\"document.title = `attacked`\">b</b>');
         document.body.lastElementChild.click();
         return document.title;",
    ];
    let (server, _root, browser) = edit_search();
    let page = url(&server, "/e/default/policies/search/edit");
    browser.wait_for("h1");
    browser.require_quiet_console();
    for injection in INJECTIONS {
        assert_ne!(browser.script(injection), "attacked", "{injection}");
        let console = browser.console();
        let is_reported = |of: &String| of.contains("Content Security Policy");
        assert!(console.iter().any(is_reported), "{injection}: {console:?}");
    }
    // In a browser that ignores the policy, both scripts run without a message.
    browser.developer_tools("Page.setBypassCSP", &json!({ "enabled": true }));
    for injection in INJECTIONS {
        browser.open(&page);
        browser.wait_for("h1");
        assert_eq!(browser.script(injection), "attacked", "{injection}");
        browser.require_quiet_console();
    }
}

#[test]
fn denial_at_the_gateway_is_visible_within_six_seconds() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy_of_all("search", 1));
    let body = json!({ "policy": "search", "key": "acme" }).to_string();
    let check = || http::post(server.http(), "/v1/check", &[], &body).unwrap().status;
    wait_until(|| check() == 429, || server.log());
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    browser.open(&url(&server, "/e/default/policies/search"));
    super::layout::wait_for_plot(&browser);
    const DENIED: &str = "const of = document.querySelector('#denied-keys td[data-label=Denied]');
        return of ? Number(of.innerText) : 0";
    let denials = |browser: &Chromium| browser.script(DENIED).as_u64().unwrap();
    browser.wait_until("no denied key", |browser| denials(browser) > 0);
    let mut times: Vec<Duration> = (0..3)
        .map(|_| {
            let before = denials(&browser);
            assert_eq!(check(), 429);
            let started = Instant::now();
            browser.wait_until("no new denial", |browser| denials(browser) > before);
            started.elapsed()
        })
        .collect();
    println!("a denial was visible after {times:?}");
    // A loaded machine may delay one attempt.
    times.sort_unstable();
    assert!(times[1] < Duration::from_secs(6), "{times:?}");
}

#[test]
fn pages_state_the_same_facts_without_scripts() {
    let demo = Demo::start();
    let mut browser = Chromium::start();
    sign_in(&mut browser, &demo, "demo");
    browser.disable_scripts(true);
    browser.open(&demo.url("/e/default/apps/search"));
    browser.wait_for("tbody th a >> search");
    browser.click("tbody th a >> search");
    // The table in place of the plot, and the history.
    browser.wait_for("figure table th >> UTC");
    assert!(!browser.has(".plot-canvas"));
    browser.wait_for("h2 >> History");
    browser.click("main a >> Edit");
    browser.fill("input[name=burst]", "60");
    browser.click("button >> Preview");
    browser.click("#preview button >> Save");
    browser.wait_for(".notice >> Saved");
    browser.click("nav a >> Changes");
    browser.wait_for("td >> changed the policy");
    browser.click("nav a >> Suspended");
    browser.click("summary >> Suspend policies");
    browser.click("button >> Continue");
    browser.click("button >> Suspend");
    browser.wait_for(".notice >> Suspended");
    browser.click("nav a >> Customers");
    browser.fill("main input[name=key]", "initech");
    browser.click("main button >> Show");
    browser.click("button >> Block key");
    browser.wait_for("#blocks th >> initech");
    browser.disable_scripts(false);
    let state: Value = demo.sign_in("demo").get("/namespaces/default/blocks").json();
    assert!(state.to_string().contains("initech"), "{state}");
}
