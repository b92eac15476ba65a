//! A refresh of an open page: the colour of old numbers, and the elements that must not move.

use serde_json::{Value, json};

use super::scripts::{check, denied, refresh, with_denials};
use super::support::chromium::Chromium;
use super::support::http;
use super::support::server::Server;

/// The texts of refreshed parts whose colour is not that of old numbers. The suspension banner has
/// a background of its own, and buttons are no numbers.
const COLOURED: &str = "
    const grey = document.createElement('span');
    grey.className = 'muted';
    document.body.append(grey);
    const muted = getComputedStyle(grey).color;
    grey.remove();
    const found = [];
    for (const part of document.querySelectorAll('[data-live]:not(.banner), [data-read]')) {
      const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const parent = walker.currentNode.parentElement;
        if (walker.currentNode.data.trim() === '' || parent.closest('button') !== null) continue;
        if (getComputedStyle(parent).color !== muted) found.push(walker.currentNode.data.trim());
      }
    }
    return found;";

/// The sum of the layout shifts from now on is in `window.shift`.
const OBSERVE_SHIFTS: &str = "
    window.shift = 0;
    new PerformanceObserver(list => {
      for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
    }).observe({ type: 'layout-shift' });";

/// Calls the result after two frames, when the layout is painted.
const SHIFT: &str = "
    const done = arguments[arguments.length - 1];
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(window.shift), 100)));";

/// The distance of the list of revisions from the top of the window.
fn place_of_revisions(browser: &Chromium) -> f64 {
    let script = "return document.getElementById('revisions').getBoundingClientRect().top";
    browser.script(script).as_f64().unwrap()
}

fn rows(browser: &Chromium) -> u64 {
    let script = "return document.querySelectorAll('#denied-keys tbody tr').length";
    browser.script(script).as_u64().unwrap()
}

/// Two calls of a key, of which the second is denied.
fn deny(server: &Server, key: &str) {
    let body = json!({ "policy": "search", "key": key }).to_string();
    let call = || http::post(server.http(), "/v1/check", &[], &body).unwrap().status;
    assert_eq!((call(), call()), (200, 429));
}

#[test]
fn old_numbers_lose_the_colour_of_their_state() {
    let (_server, browser) = with_denials();
    let coloured = browser.script(COLOURED);
    assert!(coloured.to_string().contains("Enforced"), "{coloured}");
    browser.script(
        "const now = Date.now;
         window.fetch = () => Promise.reject(new Error('offline'));
         Date.now = () => now() + 31000;",
    );
    browser.wait_until("a number keeps its colour", |browser| {
        browser.script(COLOURED) == Value::Array(Vec::new())
    });
}

#[test]
fn totals_of_the_plot_are_refreshed() {
    let (server, browser) = with_denials();
    let hours = "
        const cells = [...document.querySelectorAll('#plot-hours td:nth-of-type(2)')];
        return cells.reduce((sum, cell) => sum + Number(cell.textContent), 0);";
    let total = |browser: &Chromium| {
        let caption = browser.text("#plot-caption");
        let (_, rest) = caption.split_once("denied ").unwrap();
        rest.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    browser.wait_until("no denial in the caption", |browser| total(browser) > 0);
    let before = total(&browser);
    assert_eq!(check(&server), 429);
    browser.wait_until("the total does not change", |browser| total(browser) > before);
    let shown = browser.script(hours);
    assert_eq!(shown, json!(total(&browser)));
}

#[test]
fn part_under_the_cursor_does_not_change_and_becomes_old() {
    let (server, browser) = with_denials();
    browser.resize(1280, 3000);
    let before = denied(&browser);
    browser.point_at("#denied-keys th a");
    assert_eq!(check(&server), 429);
    refresh(&browser);
    assert_eq!(denied(&browser), before);
    // A page whose refreshes succeed is at most 5 seconds old.
    browser.wait_until("the page does not state the age of the part", |browser| {
        let age = browser.text("[data-age]");
        age.split(' ').next().and_then(|age| age.parse::<u32>().ok()) >= Some(8)
    });
    browser.point_at(".product");
    browser.wait_until("the number does not change", |browser| denied(browser) > before);
}

#[test]
fn selected_text_does_not_change() {
    let (server, browser) = with_denials();
    let before = denied(&browser);
    browser.script(
        "const number = document.querySelector('#denied-keys td[data-label=Denied]');
         document.getSelection().selectAllChildren(number);",
    );
    assert_eq!(check(&server), 429);
    refresh(&browser);
    assert_eq!(denied(&browser), before);
    browser.script("document.getSelection().removeAllRanges()");
    browser.wait_until("the number does not change", |browser| denied(browser) > before);
}

#[test]
fn growing_part_does_not_push_the_element_under_the_cursor() {
    let (server, browser) = with_denials();
    // Without a scrolled page, the browser does not compensate for the growth itself.
    browser.resize(1280, 3000);
    browser.point_at("#revisions th a");
    let (place, before) = (place_of_revisions(&browser), rows(&browser));
    for number in 0..3 {
        deny(&server, &format!("key {number}"));
    }
    for _ in 0..2 {
        refresh(&browser);
        assert!((place_of_revisions(&browser) - place).abs() < 0.5);
    }
    browser.point_at(".product");
    browser.wait_until("the new keys are not shown", |browser| {
        rows(browser) == before + 3
    });
}

#[test]
fn refreshed_numbers_do_not_shift_the_layout() {
    let (server, browser) = with_denials();
    refresh(&browser);
    browser.script(OBSERVE_SHIFTS);
    let before = denied(&browser);
    for _ in 0..12 {
        assert_eq!(check(&server), 429);
    }
    browser.wait_until("the number does not change", |browser| {
        denied(browser) >= before + 12
    });
    let shift = browser.async_script(SHIFT).as_f64().unwrap();
    assert!(shift < 0.02, "{shift}");
}
