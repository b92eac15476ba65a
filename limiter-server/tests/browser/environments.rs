//! Two environments: their names and colours in the top bar, and the menu that switches them. The
//! colours of states, which are those of environments.

use limiter_testing::RedisServer;
use serde_json::{Value, json};

use super::behaviour::{sign_in_at, url};
use super::measure::{Measures, THEMES, WINDOWS};
use super::support::admin::{AdminClient, with_database};
use super::support::chromium::{Chromium, keys};
use super::support::server::{Directory, Server};

const COLOURS: [&str; 5] = ["grey", "red", "amber", "green", "blue"];
/// The classes of states with the hue of their colour.
const STATES: [(&str, &str); 5] = [
    ("off", "grey"),
    ("shadow", "blue"),
    ("ok", "green"),
    ("waiting", "amber"),
    ("bad", "red"),
];

/// A server with the environments `prod` and `staging`, and the session of its administrator.
fn with_environments(redis: &RedisServer) -> (Server, AdminClient) {
    let directory = Directory::new();
    let database = directory.path().join("limiter.db");
    let settings = format!(
        "gateway_namespace = 'prod'\n[namespace.prod]\nredis = '{0}'\n[namespace.staging]\nredis = '{0}'\n",
        redis.url()
    );
    directory.write("limiter-server.toml", &settings);
    let server = with_database(directory, &format!("sqlite:{}", database.display()), &[]);
    let root = AdminClient::set_up(&server);
    (server, root)
}

/// The colour of the text of an element as red, green and blue.
fn colour_of(browser: &Chromium, selector: &str) -> [u64; 3] {
    let script = format!(
        "return getComputedStyle(document.querySelector('{selector}')).color.match(/[\\d.]+/g).map(Number)"
    );
    let colour = browser.script(&script);
    [0, 1, 2].map(|at: usize| colour[at].as_u64().expect("a whole number"))
}

/// The name of the hue of a colour.
fn hue([red, green, blue]: [u64; 3]) -> &'static str {
    let (least, most) = (red.min(green).min(blue), red.max(green).max(blue));
    if most - least < 40 {
        "grey"
    } else if green == most {
        "green"
    } else if blue == most {
        "blue"
    } else if green > blue + 40 {
        // Red has about as much green as blue.
        "amber"
    } else {
        "red"
    }
}

#[test]
fn environments_are_named_and_coloured_in_the_top_bar() {
    let redis = RedisServer::start();
    let (server, root) = with_environments(&redis);
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    let mut measures = Measures::default();
    for colour in COLOURS {
        // The longest label.
        let label = format!("{:x<40}", format!("An environment in {colour} with a name "));
        let body = json!({ "label": label, "colour": colour });
        let set = root.send("PUT", "/namespaces/prod", &[], &body);
        assert_eq!(set.status, 204, "{}", set.body);
        for (width, height) in WINDOWS {
            browser.resize(width, height);
            browser.open(&url(&server, "/e/prod/apps"));
            for theme in THEMES {
                browser.use_theme(theme);
                assert_eq!(browser.text("#environments summary"), label);
                assert_eq!(
                    hue(colour_of(&browser, "#environments summary")),
                    colour,
                    "{theme}"
                );
                let shown = format!("{colour} environment at {width} in {theme}");
                measures.measure(&browser, (&shown, theme));
            }
        }
    }
    measures.require_no_problem();
    browser.require_quiet_console();
}

#[test]
fn environment_is_switched_by_the_keyboard() {
    let redis = RedisServer::start();
    let (server, _root) = with_environments(&redis);
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    browser.open(&url(&server, "/e/prod/apps"));
    let has_focus = "return document.activeElement.matches('#environments summary')";
    browser.tab_to("#environments summary");
    browser.press(keys::ENTER);
    browser.tab_to("#environments a >> staging");
    browser.require_accessible();
    // Escape closes the menu and does not lose the focus.
    browser.press(keys::ESCAPE);
    assert!(!browser.has("#environments a"));
    assert_eq!(browser.script(has_focus), Value::Bool(true));
    browser.press(keys::ENTER);
    browser.tab_to("#environments a >> staging");
    browser.press(keys::ENTER);
    browser.wait_for("#environments summary >> staging");
    assert!(browser.path().starts_with("/e/staging/"), "{}", browser.path());
    let current = "return document.querySelector('#environments a[aria-current]').textContent";
    assert_eq!(browser.script(current), "staging");
    browser.require_quiet_console();
}

#[test]
fn classes_of_states_have_their_colours() {
    let redis = RedisServer::start();
    let (server, _root) = with_environments(&redis);
    let mut browser = Chromium::start();
    sign_in_at(&mut browser, &server, "root");
    for (class, _) in STATES {
        browser.script(&format!(
            "const state = document.createElement('span');
             state.className = 'state {class}';
             state.id = 'state-{class}';
             state.textContent = 'State';
             document.querySelector('main').append(state);"
        ));
    }
    for theme in THEMES {
        browser.use_theme(theme);
        for (class, expected) in STATES {
            let colour = colour_of(&browser, &format!("#state-{class}"));
            assert_eq!(hue(colour), expected, "{class} in {theme}: {colour:?}");
        }
    }
}
