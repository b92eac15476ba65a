//! The plot: its polling, edit markers, links to evidence, and the selected part of the range.

use serde_json::{Value, json};

use super::behaviour::{sign_in_at, url};
use super::layout::wait_for_plot;
use super::support::admin::{AdminClient, policy_of_all, with_sqlite};
use super::support::chromium::Chromium;
use super::support::http;
use super::support::server::{Server, wait_until};

const PAGE: &str = "/e/default/policies/search";

/// A server with two revisions and a denied key, and a browser on the page of the policy.
fn with_plot(query: &str) -> (Server, Chromium) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy_of_all("search", 2));
    root.put_policy("search", 1, &policy_of_all("search", 1));
    let check = || {
        let body = json!({ "policy": "search", "key": "acme" }).to_string();
        http::post(server.http(), "/v1/check", &[], &body).unwrap().status
    };
    wait_until(|| check() == 429, || server.log());
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    browser.open(&url(&server, &format!("{PAGE}{query}")));
    wait_for_plot(&browser);
    (server, browser)
}

/// The middle of the surface of the plot at a share of its width.
fn point(browser: &Chromium, share: f64) -> (i64, i64) {
    let script = format!(
        "const over = document.querySelector('.u-over');
         over.scrollIntoView({{ block: 'center' }});
         const box = over.getBoundingClientRect();
         return [Math.round(box.left + box.width * {share}), Math.round(box.top + box.height / 2)]"
    );
    let found = browser.script(&script);
    (found[0].as_i64().unwrap(), found[1].as_i64().unwrap())
}

/// The page after a click, as path and query.
fn location(browser: &Chromium) -> String {
    let found = browser.script("return location.pathname + location.search");
    found.as_str().unwrap_or_default().to_owned()
}

#[test]
fn point_of_the_plot_leads_to_its_explanation() {
    let (_server, browser) = with_plot("");
    browser.drag(point(&browser, 0.5), point(&browser, 0.5));
    browser.wait_for("h1 >> Explain");
    let at = browser.script("return Number(new URLSearchParams(location.search).get('at')) / 1e6");
    let now = browser.script("return Date.now() / 1e3").as_f64().unwrap();
    let hours = (now - at.as_f64().unwrap()) / 3_600.0;
    assert!(
        (11.0..13.0).contains(&hours),
        "the middle of 24 h is {hours} h ago"
    );
    assert!(
        location(&browser).contains("policy=search"),
        "{}",
        location(&browser)
    );
}

#[test]
fn mark_of_the_plot_leads_to_its_revision() {
    let (_server, browser) = with_plot("?hours=1");
    // The revisions are those of this minute, at the right end, whose clicks uPlot takes for drags.
    browser.drag(point(&browser, 0.999), point(&browser, 0.999));
    browser.wait_for("h1 >> Revision");
    let shown = location(&browser);
    assert!(shown.starts_with(&format!("{PAGE}/history/")), "{shown}");
    // The marks are drawn with their numbers: without marks, the canvas differs.
    browser.require_quiet_console();
}

#[test]
fn marks_are_drawn() {
    let (_server, browser) = with_plot("?hours=1");
    let script = "
        const seen = [];
        const fill = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
          seen.push(text);
          return fill.call(this, text, ...rest);
        };
        window.dispatchEvent(new Event('resize'));
        document.querySelector('.plot-canvas').style.width = '500px';
        const done = arguments[arguments.length - 1];
        const wait = () => (seen.includes('2') ? done(seen) : setTimeout(wait, 50));
        wait();";
    let seen = browser.async_script(script);
    let texts: Vec<&str> = seen
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(texts.contains(&"1") && texts.contains(&"2"), "{texts:?}");
    let zone = texts.iter().find(|of| of.starts_with("Time in ")).unwrap();
    assert!(zone.len() > "Time in ".len(), "{zone}");
}

#[test]
fn selected_part_of_the_range_is_in_the_url_and_survives_a_reload() {
    let (_server, browser) = with_plot("");
    browser.drag(point(&browser, 0.25), point(&browser, 0.75));
    browser.wait_until("no range in the URL", |browser| {
        location(browser).contains("from=")
    });
    let shown = location(&browser);
    assert!(shown.starts_with(PAGE), "a drag is no click: {shown}");
    let ends = "const query = new URLSearchParams(location.search);
        return (Number(query.get('to')) - Number(query.get('from'))) / 3600";
    let hours = browser.script(ends).as_f64().unwrap();
    assert!((11.0..13.0).contains(&hours), "half of 24 h: {hours} h");
    browser.open(&browser.url());
    wait_for_plot(&browser);
    // The middle of the shown part is the middle of the selected one.
    browser.drag(point(&browser, 0.0), point(&browser, 0.0));
    browser.wait_for("h1 >> Explain");
    let script = "return Number(new URLSearchParams(location.search).get('at')) / 1e6";
    let at = browser.script(script).as_f64().unwrap();
    let from: f64 = shown
        .split("from=")
        .nth(1)
        .unwrap()
        .split('&')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!((at - from).abs() < 600.0, "{at} is not the start {from}");
}

#[test]
fn double_click_shows_the_whole_range() {
    let (_server, browser) = with_plot("");
    browser.drag(point(&browser, 0.25), point(&browser, 0.75));
    browser.wait_until("no range in the URL", |browser| {
        location(browser).contains("from=")
    });
    browser.double_click(point(&browser, 0.5));
    browser.wait_until("the range stays in the URL", |browser| location(browser) == PAGE);
    let drawn = "return document.querySelector('figure[data-plot]').dataset.drawn";
    let before = browser.script(drawn);
    browser.wait_until("the plot is not drawn again", |browser| {
        browser.script(drawn) != before
    });
    browser.drag(point(&browser, 0.0), point(&browser, 0.0));
    browser.wait_for("h1 >> Explain");
    let script = "return Date.now() / 3.6e6 - Number(new URLSearchParams(location.search).get('at')) / 3.6e9";
    let hours = browser.script(script).as_f64().unwrap();
    assert!((23.0..25.0).contains(&hours), "the start is {hours} h ago");
}

#[test]
fn ranges_are_in_the_url() {
    let (_server, mut browser) = with_plot("");
    browser.click(".ranges a >> 6 h");
    wait_for_plot(&browser);
    assert_eq!(location(&browser), format!("{PAGE}?hours=6"));
    let hours = browser.script("return document.querySelector('figure[data-plot]').dataset.hours");
    assert_eq!(hours, "6");
    assert_eq!(browser.text(".ranges a[aria-current]"), "6 h");
}

#[test]
fn interrupted_read_of_the_plot_is_repeated() {
    let (_server, browser) = with_plot("");
    let condition = browser.async_script(
        "const done = arguments[arguments.length - 1];
         const send = window.fetch;
         const interrupt = (body) => body.error(new TypeError('network error'));
         let count = 0;
         window.fetch = async (resource, options) => {
           if (!String(resource).includes('/usage')) return send(resource, options);
           count += 1;
           const headers = { etag: 'interrupted' };
           if (count === 1) return new Response(new ReadableStream({ start: interrupt }), { headers });
           window.fetch = send;
           done(options.headers['if-none-match'] ?? 'none');
           return send(resource, options);
         };",
    );
    assert_ne!(condition, "interrupted");
    browser.require_quiet_console();
}

#[test]
fn plot_without_an_answer_turns_grey_and_ends_its_call() {
    let (_server, browser) = with_plot("");
    let is_stale = |browser: &Chromium| {
        let script = "return document.querySelector('figure[data-plot]').classList.contains('stale')";
        browser.script(script) == Value::Bool(true)
    };
    assert!(!is_stale(&browser));
    // The call has no answer, and 31 seconds pass.
    let has_timeout = browser.async_script(
        "const done = arguments[arguments.length - 1];
         window.fetch = (resource, options) => {
           if (String(resource).includes('/usage')) {
             const now = Date.now;
             Date.now = () => now() + 31000;
             done(options.signal instanceof AbortSignal);
           }
           return new Promise(() => {});
         };",
    );
    assert_eq!(has_timeout, Value::Bool(true));
    browser.wait_until("the plot does not turn grey", is_stale);
}

#[test]
fn plot_of_an_old_minute_has_it_in_the_middle() {
    let (server, browser) = with_plot("");
    let now = browser.script("return Date.now()").as_i64().unwrap();
    let at = (now - 30 * 3_600_000) * 1_000;
    let path = format!("/e/default/explain?policy=search&at={at}");
    browser.open(&url(&server, &path));
    wait_for_plot(&browser);
    browser.drag(point(&browser, 0.5), point(&browser, 0.5));
    browser.wait_until("the click does not lead to a minute", |browser| {
        !location(browser).contains(&format!("at={at}"))
    });
    browser.wait_for("h1 >> Explain");
    let script = "return Number(new URLSearchParams(location.search).get('at'))";
    let shown = browser.script(script).as_i64().unwrap();
    assert!((shown - at).abs() < 3_600_000_000, "{shown} is not near {at}");
}

#[test]
fn failed_calls_are_in_the_plot() {
    let (server, browser) = with_plot("");
    let body = json!({ "policy": "search", "key": "acme", "cost": 50 }).to_string();
    assert_eq!(
        http::post(server.http(), "/v1/check", &[], &body).unwrap().status,
        429
    );
    browser.wait_until("no failed call in the plot", |browser| {
        let script = "return document.querySelector('figure[data-plot]').dataset.failed";
        browser.script(script) == "1"
    });
    assert!(
        browser.text(".u-legend").contains("Failed"),
        "{}",
        browser.text(".u-legend")
    );
}

/// Records the answers to all calls of scripts.
const RECORD: &str = "
    window.answers = [];
    const send = window.fetch;
    window.fetch = async (resource, options) => {
      const answer = await send(resource, options);
      const isPlot = String(resource).includes('/usage');
      window.answers.push({ kind: isPlot ? 'plot' : 'page', status: answer.status });
      return answer;
    };";

#[test]
fn polls_by_a_timer_with_tags_and_not_in_hidden_tabs() {
    let (_server, browser) = with_plot("");
    browser.script(RECORD);
    let count = |browser: &Chromium, kind: &str, status: &str| {
        let script = format!("return window.answers.filter(of => of.kind === '{kind}'{status}).length");
        browser.script(&script).as_u64().unwrap()
    };
    for kind in ["page", "plot"] {
        browser.wait_until("no answer 304 by the timer", |browser| {
            count(browser, kind, " && of.status === 304") > 0
        });
    }
    browser.script("Object.defineProperty(document, 'hidden', { value: true, configurable: true });");
    // A call that was under way when the tab was hidden is answered before.
    browser.wait_until("the page does not age", |browser| {
        browser.text("[data-age]").starts_with("2 s")
    });
    browser.script("window.answers = []");
    browser.wait_until("the page does not age", |browser| {
        browser.text("[data-age]").starts_with("13 s")
    });
    assert_eq!(browser.script("return window.answers.length"), 0);
    browser.script("Object.defineProperty(document, 'hidden', { value: false, configurable: true });");
    for kind in ["page", "plot"] {
        browser.wait_until("no poll of a visible tab", |browser| count(browser, kind, "") > 0);
    }
}

#[test]
fn fields_of_times_are_in_the_zone_of_the_viewer() {
    let (server, mut browser) = with_plot("");
    let zone = json!({ "timezoneId": "Asia/Kolkata" });
    browser.developer_tools("Emulation.setTimezoneOverride", &zone);
    browser.open(&url(&server, "/e/default/explain"));
    let label = browser.text("label:has([type=datetime-local])");
    assert!(label.contains("GMT+5:30") || label.contains("IST"), "{label}");
    browser.fill("input[name=policy]", "search");
    browser.script(
        "const field = document.querySelector('[type=datetime-local]');
         field.value = '2026-11-23T19:33';
         field.dispatchEvent(new Event('input'));",
    );
    browser.click("main button >> Explain");
    browser.wait_for("dl.facts");
    assert!(
        location(&browser).contains("time=2026-11-23T14%3A03"),
        "{}",
        location(&browser)
    );
    // The browser restores the field without an event.
    browser.open(&url(&server, "/e/default/explain"));
    browser.fill("input[name=policy]", "search");
    browser.script("document.querySelector('[type=datetime-local]').value = '2026-11-23T19:33'");
    browser.click("nav a >> Status");
    browser.wait_for("h1 >> Status");
    browser.back();
    browser.wait_for("h1 >> Explain");
    let shown = browser.script("return document.querySelector('[type=datetime-local]').value");
    assert_eq!(shown, "2026-11-23T19:33");
    browser.click("main button >> Explain");
    browser.wait_for("dl.facts");
    assert!(
        location(&browser).contains("time=2026-11-23T14%3A03"),
        "{}",
        location(&browser)
    );
    browser.open(&url(&server, "/e/default/customers?key=acme"));
    let option = browser.script("return document.querySelector('select[name=until] option').textContent");
    let option = option.as_str().unwrap();
    assert!(option.contains("GMT+5:30") || option.contains("IST"), "{option}");
    browser.open(&url(&server, PAGE));
    wait_for_plot(&browser);
    browser.require_quiet_console();
}
