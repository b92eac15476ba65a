//! Forms that are sent twice or without a session, and long values.

use serde_json::{Value, json};

use super::behaviour::{sign_in_at, url};
use super::support::admin::{AdminClient, PASSWORD, policy, with_sqlite};
use super::support::chromium::Chromium;

/// Sends a form twice, and once more after the browser returns to the page. Returns whether the
/// script of the page has prevented each time.
const SEND: &str = "
    const prevented = [];
    addEventListener('submit', event => {
      prevented.push(event.defaultPrevented);
      event.preventDefault();
    });
    const form = document.querySelector('FORM');
    form.requestSubmit();
    form.requestSubmit();
    dispatchEvent(new Event('pageshow'));
    form.requestSubmit();
    return prevented;";

#[test]
fn second_click_does_not_send_a_form_again() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    for (page, form, second) in [
        ("/e/default/policies/search/delete", "form.panel", true),
        // A form that reads.
        ("/e/default/changes", "main form", false),
    ] {
        browser.open(&url(&server, page));
        browser.wait_for(form);
        let prevented = browser.script(&SEND.replace("FORM", form));
        assert_eq!(prevented, json!([false, second, false]), "{page}");
    }
}

#[test]
fn long_key_is_entered_as_a_whole() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    browser.open(&url(&server, "/e/default/customers"));
    let key = "k".repeat(300);
    browser.click("main input[name=key]");
    browser.insert_text(&key);
    browser.click("main form button >> Show");
    browser.wait_for("h2 >> Block the key");
    let shown = browser.script("return document.querySelector('input[type=hidden][name=key]').value");
    assert_eq!(shown, Value::from(key));
}

#[test]
fn form_of_an_ended_session_is_sent_again() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    browser.open(&url(&server, "/e/default/policies/search/edit"));
    browser.fill("input[name=burst]", "8");
    browser.delete_cookies();
    browser.click("button >> Preview");
    browser.wait_for("p >> Your session has ended");
    browser.require_accessible();
    // Another tab signs the user in.
    let signed_in = browser.async_script(&format!(
        "const done = arguments[arguments.length - 1];
         const body = new URLSearchParams({{ user: 'root', password: '{PASSWORD}', next: '/account' }});
         fetch('/signin', {{ method: 'POST', body }}).then((answer) => done(answer.status));"
    ));
    assert_eq!(signed_in, 200);
    browser.reload();
    browser.wait_for("#preview p >> bursts of 8");
}
