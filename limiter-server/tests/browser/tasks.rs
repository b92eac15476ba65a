//! The tasks of the guide in a browser, with the mouse and with the keyboard alone.
//!
//! The table of `docs/guide/admin-ui.md` states the clicks of each task. Both tests perform the
//! steps below, and compare the names and the clicks with the table.

use std::time::Duration;

use serde_json::Value;

use super::pages::{pictures, sign_in};
use super::support::chromium::{Chromium, keys};
use super::support::demo::Demo;

const GUIDE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/admin-ui.md"));

/// The longest time until the first whole minute of the demonstration.
const PATIENCE: Duration = Duration::from_secs(150);

/// A step of a task. Selectors are those of [`Chromium::click`].
enum Step {
    Click(&'static str),
    Fill(&'static str, String),
    /// Waits for an element.
    See(&'static str),
    /// Waits until the previous minute has denials.
    DeniedMinute,
    /// Enters the previous minute into a field of a time.
    PreviousMinute(&'static str),
    /// Waits for the heading with the entered minute.
    SeeMinute(&'static str),
    /// Takes a picture of the start of the page for the guide.
    Picture(&'static str),
    /// Takes a picture with this element in its middle.
    PictureOf(&'static str, &'static str),
}

use Step::{Click, DeniedMinute, Fill, Picture, PictureOf, PreviousMinute, See, SeeMinute};

struct Task {
    name: &'static str,
    steps: Vec<Step>,
}

/// The tasks. `mode` makes the names of new objects unique.
fn tasks(mode: &str) -> Vec<Task> {
    let fill = |selector, text: &str| Fill(selector, text.to_owned());
    let task = |name, steps| Task { name, steps };
    vec![
        task(
            "see which policies deny",
            vec![See("#denied table a >> login"), Picture("now")],
        ),
        task(
            "see the fullest keys",
            vec![See("#full-keys table"), PictureOf("full-keys", "#full-keys")],
        ),
        task(
            "see the remaining calls of one customer",
            vec![
                Click("nav a >> Customers"),
                fill("main input[name=key]", "acme"),
                Click("main button >> Show"),
                See("td[data-label=Left]"),
            ],
        ),
        task(
            "raise one customer until Friday",
            vec![
                Click("nav a >> Customers"),
                fill("main input[name=key]", "globex"),
                Click("main button >> Show"),
                Click("summary >> Raise"),
                PictureOf("raise", "details[open]"),
                Click("details[open] button >> Raise"),
                See(".notice >> Raised"),
                See("td >> own quota"),
            ],
        ),
        task(
            "block an abusive key",
            vec![
                Click("#denied-keys th a >> 203.0.113.66"),
                Picture("block"),
                Click("button >> Block key"),
                See("#blocks th >> 203.0.113.66"),
            ],
        ),
        task(
            "roll out a new value as a trial and adopt it",
            vec![
                Click("nav a >> Apps"),
                Click("main th a >> search"),
                See("h1 >> search"),
                Click("main th a >> search"),
                Click("summary >> Try other numbers"),
                fill("details[open] input[name=requests]", "12"),
                Click("details[open] button >> Start the trial"),
                See("#trial-result >> Trial"),
                Picture("policy"),
                PictureOf("trial", "#trial-result"),
                Click("button >> Adopt"),
                See(".notice >> Adopted"),
                See(".sentence >> 12 requests a second"),
            ],
        ),
        task(
            "create a policy",
            vec![
                Click("nav a >> Apps"),
                Click("main a >> New policy"),
                fill("input[name=name]", &format!("downloads-{mode}")),
                Click("button >> Preview"),
                Picture("preview"),
                Click("#preview button >> Save"),
                See("h1 >> downloads"),
            ],
        ),
        task(
            "restore an old revision",
            vec![
                Click("nav a >> Apps"),
                Click("main th a >> checkout"),
                Click("main th a >> payments"),
                Click("table a[href$=\"/history/1\"]"),
                Picture("restore"),
                Click("button >> Restore revision 1"),
                See(".notice >> Restored"),
            ],
        ),
        task(
            "suspend a policy",
            vec![
                Click("nav a >> Suspended"),
                Click("summary >> Suspend policies"),
                Click("button >> Continue"),
                Picture("suspend"),
                Click("button >> Suspend"),
                See("#suspension-banner >> Suspended"),
            ],
        ),
        task(
            "create a rule for a request without one",
            vec![
                Click("#unmatched a >> Create rule"),
                fill("textarea[rows]", &rules()),
                Click("button >> Preview"),
                See("#preview"),
                Picture("rules"),
                Click("#preview button >> Save rules"),
                See(".notice >> Saved"),
            ],
        ),
        task(
            "onboard an app",
            vec![
                Click("nav a >> Apps"),
                Click("summary >> New app"),
                fill("details[open] input[name=name]", &format!("mobile-{mode}")),
                Click("button >> Create the app"),
                See("h1 >> mobile"),
                Click("main a >> New policy"),
                fill("input[name=name]", &format!("mobile-{mode}")),
                Click("button >> Preview"),
                Click("#preview button >> Save"),
                Click("main a >> Connect an app"),
                Picture("connect"),
                Click("button >> Create a token"),
                See("pre >> lim_"),
            ],
        ),
        task(
            "rotate a token",
            vec![
                Click("nav a >> Apps"),
                Click("main th a >> checkout"),
                Click("nav a >> Tokens"),
                Picture("tokens"),
                Click("summary >> Rotate"),
                Click("details[open] button >> Rotate"),
                See("pre >> lim_"),
            ],
        ),
        // The last task, because it needs a whole minute with denials.
        task(
            "find out why a customer was denied at 14:03",
            vec![
                DeniedMinute,
                Click("nav a >> Explain"),
                fill("input[name=policy]", "search"),
                fill("input[name=key]", "acme"),
                PreviousMinute("input[name=time]"),
                Click("main button >> Explain"),
                SeeMinute("h2 time"),
                See("dl.facts dt >> Denied calls of this key"),
                See("dl.facts dd >> at node"),
                Picture("explain"),
            ],
        ),
    ]
}

/// The rules after the task of a rule: those of the demonstration, and one for the newsletter.
fn rules() -> String {
    let rule = |route: &str, entry: &str, policy: &str| {
        format!(
            "[[rule]]\ndomain = \"edge\"\nmatch = [\"route={route}\", \"{entry}\"]\npolicy = \"{policy}\"\n\n"
        )
    };
    let of_customers = ["search", "checkout", "payments", "suggestions"];
    let mut text: String = of_customers.map(|route| rule(route, "customer", route)).concat();
    text += &rule("login", "remote_address", "login");
    text + &rule("newsletter", "customer", "api")
}

/// The tasks of the guide with their clicks.
fn tasks_of_the_guide() -> Vec<(&'static str, usize)> {
    let rows = GUIDE
        .lines()
        .skip_while(|line| !line.starts_with("| task |"))
        .skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        (
            cells[0],
            cells[cells.len() - 1].parse().expect("a number of clicks"),
        )
    })
    .collect()
}

/// The input device of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    Mouse,
    Keyboard,
}

fn perform(browser: &mut Chromium, hand: Hand, step: &Step) {
    match (step, hand) {
        (Click(selector), Hand::Mouse) => browser.click(selector),
        (Click(selector), Hand::Keyboard) => {
            browser.wait_for(selector);
            browser.tab_to(selector);
            browser.press(keys::ENTER);
        }
        (Fill(selector, text), Hand::Mouse) => browser.fill(selector, text),
        (Fill(selector, text), Hand::Keyboard) => {
            browser.wait_for(selector);
            browser.tab_to(selector);
            browser.press(&format!("{}a", keys::CONTROL));
            browser.insert_text(text);
        }
        (See(selector), _) => {
            browser.wait_for(selector);
        }
        (DeniedMinute, _) => wait_for_denied_minute(browser),
        (PreviousMinute(field), hand) => {
            match hand {
                Hand::Mouse => browser.press_at(field),
                Hand::Keyboard => browser.tab_to(field),
            }
            enter_previous_minute(browser, field);
        }
        (SeeMinute(selector), _) => {
            browser.wait_for(selector);
            let entered = browser.script("return sessionStorage.getItem('minute')");
            let script = format!("return document.querySelector('{selector}').dateTime.slice(0, 16)");
            assert_eq!(browser.script(&script), entered);
        }
        (Picture(name), Hand::Mouse) => {
            super::layout::wait_for_plot(browser);
            browser.require_accessible();
            browser.use_theme("light");
            browser.screenshot(&pictures().join(format!("admin-{name}.png")));
        }
        (PictureOf(name, selector), Hand::Mouse) => {
            browser.wait_for(selector);
            browser.script(&format!(
                "document.querySelector('{selector}').scrollIntoView({{ block: 'center' }})"
            ));
            perform(browser, hand, &Picture(name));
        }
        (Picture(_) | PictureOf(..), Hand::Keyboard) => {}
    }
}

/// Waits until this node has recorded denials of the task in the previous minute. The minute has
/// not just begun the hour and is not about to end, so the keys that enter the previous one change
/// one part of the field.
fn wait_for_denied_minute(browser: &Chromium) {
    let is_recorded = "
        const done = arguments[arguments.length - 1];
        const now = new Date();
        if (now.getMinutes() === 0 || now.getSeconds() > 45) return done(false);
        const minute = new Date(now.getTime() - 60000).toISOString().slice(0, 16);
        fetch(`explain?policy=search&key=acme&time=${minute}`)
          .then(answer => answer.text())
          .then(text => {
            const page = new DOMParser().parseFromString(text, 'text/html');
            done([...page.querySelectorAll('dl.facts dd')].some(of => of.textContent.includes('at node')));
          });";
    browser.wait_until_within(PATIENCE, "no denial in the previous minute", |browser| {
        browser.async_script(is_recorded) == Value::Bool(true)
    });
}

/// Types into the field with the focus, which suggests the current minute. The order of its parts
/// depends on the locale, but the minutes are the fifth one.
fn enter_previous_minute(browser: &Chromium, field: &str) {
    browser.press(&(keys::LEFT.repeat(6) + &keys::RIGHT.repeat(4) + keys::DOWN));
    let minutes_ago = browser.script(&format!(
        "const minute = new Date(document.querySelector('{field}').value);
         sessionStorage.setItem('minute', minute.toISOString().slice(0, 16));
         return Math.floor(Date.now() / 60000) - minute.getTime() / 60000;"
    ));
    assert_eq!(minutes_ago, 1);
}

fn perform_all(hand: Hand) {
    let demo = Demo::start();
    let mut browser = Chromium::start();
    browser.resize(1_100, 700);
    sign_in(&mut browser, &demo, "demo");
    let guide = tasks_of_the_guide();
    let tasks = tasks(&format!("{hand:?}").to_lowercase());
    let mut names: Vec<&str> = tasks.iter().map(|task| task.name).collect();
    let mut documented: Vec<&str> = guide.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    documented.sort_unstable();
    assert_eq!(names, documented, "the tasks of the guide");
    for task in tasks {
        println!("{hand:?}: {}", task.name);
        browser.open(&demo.url("/e/default/now"));
        browser.wait_for("#denied-keys");
        browser.take_clicks();
        let mut steps = 0;
        for step in &task.steps {
            steps += usize::from(matches!(step, Click(_)));
            perform(&mut browser, hand, step);
        }
        let clicks = match hand {
            Hand::Mouse => browser.take_clicks(),
            Hand::Keyboard => steps,
        };
        let (_, stated) = guide.iter().find(|(name, _)| *name == task.name).unwrap();
        assert_eq!(clicks, *stated, "the clicks of: {}", task.name);
        if hand == Hand::Mouse {
            browser.require_accessible();
            browser.use_theme("light");
        }
        browser.require_quiet_console();
    }
}

#[test]
fn tasks_of_the_guide_take_the_stated_clicks() {
    perform_all(Hand::Mouse);
}

#[test]
fn tasks_of_the_guide_need_the_keyboard_alone() {
    perform_all(Hand::Keyboard);
}
