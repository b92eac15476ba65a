//! A headless Chromium that a test starts and owns, driven through WebDriver.
//!
//! A client of our own: the crates for WebDriver depend on code under the MPL, and a dozen commands
//! are enough. Console messages are kept by the driver; [`Chromium::console`] reads them, and a
//! violation of the Content-Security-Policy is one of them.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http;
use super::server::Directory;

/// The key under which WebDriver names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// The time for which a test waits for an element.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest time of one command of the driver. The first one starts the browser.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Keys without a character.
pub(crate) mod keys {
    pub(crate) const TAB: &str = "\u{e004}";
    pub(crate) const ENTER: &str = "\u{e007}";
    pub(crate) const SHIFT: &str = "\u{e008}";
    pub(crate) const CONTROL: &str = "\u{e009}";
    pub(crate) const ESCAPE: &str = "\u{e00c}";
    pub(crate) const LEFT: &str = "\u{e012}";
    pub(crate) const RIGHT: &str = "\u{e014}";
    pub(crate) const DOWN: &str = "\u{e015}";
    pub(crate) const META: &str = "\u{e03d}";
}

/// A browser with one window. It ends with its handle.
#[derive(Debug)]
pub(crate) struct Chromium {
    driver: Child,
    address: SocketAddr,
    session: String,
    clicks: usize,
    _profile: Directory,
}

/// Starts a driver and returns it with its port. The driver selects a free port of IPv4 and ends if
/// that port is in use for IPv6; then another is started.
fn start_driver() -> (Child, u16) {
    for _ in 0..5 {
        let mut driver = Command::new("chromedriver")
            .args(["--port=0", "--log-level=SEVERE"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver; `cargo xtask server` installs it");
        let output = BufReader::new(driver.stdout.take().expect("piped"));
        let port = output.lines().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        if let Some(port) = port {
            return (driver, port);
        }
        driver.wait().expect("the output of the driver ended");
    }
    panic!("no driver of five printed its port");
}

impl Chromium {
    pub(crate) fn start() -> Self {
        let profile = Directory::new();
        let (driver, port) = start_driver();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut browser = Self {
            driver,
            address,
            session: String::new(),
            clicks: 0,
            _profile: profile,
        };
        let profile = browser._profile.path().display();
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--lang=en-GB",
            &format!("--user-data-dir={profile}"),
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": arguments },
        } } });
        let started = browser.request("POST", "/session", &capabilities);
        let session = started["sessionId"].as_str();
        browser.session = session.unwrap_or_else(|| panic!("{started}")).to_owned();
        browser.resize(1280, 900);
        browser
    }

    fn request(&self, method: &str, path: &str, body: &Value) -> Value {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (host, length) = (self.address.to_string(), text.len().to_string());
        let headers = [
            ("host", host.as_str()),
            ("content-type", "application/json"),
            ("content-length", length.as_str()),
        ];
        let line = format!("{method} {path}");
        let answer = http::send_within(COMMAND_TIMEOUT, self.address, &line, &headers, &text);
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let body: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{}", answer.body));
        body["value"].clone()
    }

    /// Sends a command of the session. Returns the error of the driver in place of a panic.
    fn try_command(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let value = self.request(method, &format!("/session/{}{path}", self.session), body);
        match value.get("error").and_then(Value::as_str) {
            Some(error) => Err(format!(
                "{error}: {}",
                value["message"].as_str().unwrap_or_default()
            )),
            None => Ok(value),
        }
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let result = self.try_command(method, path, body);
        result.unwrap_or_else(|error| panic!("{method} {path} {body}: {error}\n{}", self.state()))
    }

    /// The page, for messages of failed tests.
    pub(crate) fn state(&self) -> String {
        let url = self.try_command("GET", "/url", &Value::Null);
        let script = json!({ "script": "return document.body.innerText", "args": [] });
        let text = self.try_command("POST", "/execute/sync", &script);
        format!(
            "{url:?}\n{}",
            text.unwrap_or_default().as_str().unwrap_or_default()
        )
    }

    /// Runs a command of the developer tools.
    pub(crate) fn developer_tools(&self, command: &str, parameters: &Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.command("POST", "/goog/cdp/execute", &body)
    }

    pub(crate) fn open(&self, url: &str) {
        self.command("POST", "/url", &json!({ "url": url }));
    }

    pub(crate) fn url(&self) -> String {
        let url = self.command("GET", "/url", &Value::Null);
        url.as_str().expect("a URL").to_owned()
    }

    /// Goes one page back.
    pub(crate) fn back(&self) {
        self.command("POST", "/back", &json!({}));
    }

    /// Loads the page again. The browser sends a form again, if the page is the answer to one.
    pub(crate) fn reload(&self) {
        self.command("POST", "/refresh", &json!({}));
    }

    /// Ends the session of the user in this browser.
    pub(crate) fn delete_cookies(&self) {
        self.command("DELETE", "/cookie", &Value::Null);
    }

    /// Inserts a text at the cursor, as an input method does.
    pub(crate) fn insert_text(&self, text: &str) {
        self.developer_tools("Input.insertText", &json!({ "text": text }));
    }

    /// The path and the query of the page.
    pub(crate) fn path(&self) -> String {
        let url = self.url();
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        rest.find('/').map_or("/", |at| &rest[at..]).to_owned()
    }

    /// Sets the size of the page in CSS pixels.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.developer_tools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Sets the preferred theme.
    pub(crate) fn use_theme(&self, theme: &str) {
        self.prefer("prefers-color-scheme", theme);
    }

    /// Sets one preference of the user, and resets the others.
    pub(crate) fn prefer(&self, feature: &str, value: &str) {
        let features = json!({ "features": [{ "name": feature, "value": value }] });
        self.developer_tools("Emulation.setEmulatedMedia", &features);
    }

    /// Switches scripts off or on. Scripts of the test need them.
    pub(crate) fn disable_scripts(&self, is_disabled: bool) {
        let value = json!({ "value": is_disabled });
        self.developer_tools("Emulation.setScriptExecutionDisabled", &value);
    }

    /// Runs a function body in the page.
    pub(crate) fn script(&self, body: &str) -> Value {
        self.command("POST", "/execute/sync", &json!({ "script": body, "args": [] }))
    }

    /// Runs a function body that calls its last argument with the result.
    pub(crate) fn async_script(&self, body: &str) -> Value {
        self.command("POST", "/execute/async", &json!({ "script": body, "args": [] }))
    }

    /// The first visible element of a selector. `text=…` after the selector and `>>` selects by a
    /// text that the element contains.
    fn find(&self, selector: &str) -> Option<String> {
        let (css, text) = match selector.split_once(" >> ") {
            Some((css, text)) => (css, Some(text)),
            None => (selector, None),
        };
        let body = json!({ "using": "css selector", "value": css });
        let found = self.try_command("POST", "/elements", &body).unwrap_or_default();
        let ids = found.as_array().cloned().unwrap_or_default();
        let ids = ids
            .iter()
            .filter_map(|of| of[ELEMENT].as_str().map(str::to_owned));
        ids.into_iter().find(|id| {
            let visible = self.try_command("GET", &format!("/element/{id}/displayed"), &Value::Null);
            let has_text = || {
                let shown = self.try_command("GET", &format!("/element/{id}/text"), &Value::Null);
                let shown = shown.unwrap_or_default();
                text.is_none_or(|text| shown.as_str().is_some_and(|shown| shown.contains(text)))
            };
            visible == Ok(Value::Bool(true)) && has_text()
        })
    }

    /// Returns whether an element is visible now.
    pub(crate) fn has(&self, selector: &str) -> bool {
        self.find(selector).is_some()
    }

    /// Waits for a visible element.
    pub(crate) fn wait_for(&self, selector: &str) -> String {
        let started = Instant::now();
        loop {
            if let Some(id) = self.find(selector) {
                return id;
            }
            assert!(started.elapsed() < PATIENCE, "no `{selector}`\n{}", self.state());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a condition holds.
    pub(crate) fn wait_until(&self, condition_name: &str, condition: impl FnMut(&Self) -> bool) {
        self.wait_until_within(PATIENCE, condition_name, condition);
    }

    /// Waits until a condition holds, for at most this time.
    pub(crate) fn wait_until_within(
        &self,
        patience: Duration,
        condition_name: &str,
        mut condition: impl FnMut(&Self) -> bool,
    ) {
        let started = Instant::now();
        while !condition(self) {
            assert!(started.elapsed() < patience, "{condition_name}\n{}", self.state());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Clicks an element, and counts the click.
    pub(crate) fn click(&mut self, selector: &str) {
        let started = Instant::now();
        loop {
            let id = self.wait_for(selector);
            match self.try_command("POST", &format!("/element/{id}/click"), &json!({})) {
                Ok(_) => break,
                // The page has replaced the element since.
                Err(error) if error.starts_with("stale") && started.elapsed() < PATIENCE => {}
                Err(error) => panic!("cannot click `{selector}`: {error}\n{}", self.state()),
            }
        }
        self.clicks += 1;
    }

    /// The number of clicks since the last call.
    pub(crate) fn take_clicks(&mut self) -> usize {
        std::mem::take(&mut self.clicks)
    }

    /// Replaces the text of a field.
    pub(crate) fn fill(&self, selector: &str, text: &str) {
        let id = self.wait_for(selector);
        self.command("POST", &format!("/element/{id}/clear"), &json!({}));
        self.command("POST", &format!("/element/{id}/value"), &json!({ "text": text }));
    }

    /// Selects an option of a list by its value.
    pub(crate) fn select(&mut self, selector: &str, value: &str) {
        self.click(&format!("{selector} option[value=\"{value}\"]"));
    }

    pub(crate) fn text(&self, selector: &str) -> String {
        let id = self.wait_for(selector);
        let text = self.try_command("GET", &format!("/element/{id}/text"), &Value::Null);
        text.unwrap_or_default().as_str().unwrap_or_default().to_owned()
    }

    /// Types keys into the element with the focus. Keys after a modifier are pressed with it.
    pub(crate) fn press(&self, typed: &str) {
        let mut actions = Vec::new();
        let mut held = Vec::new();
        for key in typed.chars().map(String::from) {
            actions.push(json!({ "type": "keyDown", "value": key }));
            if [keys::SHIFT, keys::CONTROL, keys::META].contains(&key.as_str()) {
                held.push(key);
            } else {
                actions.push(json!({ "type": "keyUp", "value": key }));
            }
        }
        actions.extend(held.iter().map(|key| json!({ "type": "keyUp", "value": key })));
        let body = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] });
        self.command("POST", "/actions", &body);
    }

    /// Moves the mouse to the middle of an element in the window.
    pub(crate) fn point_at(&self, selector: &str) {
        let id = self.wait_for(selector);
        let to = json!({ "type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": { ELEMENT: id } });
        let mouse = json!({ "type": "pointer", "id": "mouse", "actions": [to] });
        self.command("POST", "/actions", &json!({ "actions": [mouse] }));
    }

    /// Presses and releases the mouse in the middle of an element. The click is not counted.
    pub(crate) fn press_at(&self, selector: &str) {
        self.point_at(selector);
        let button = |kind| json!({ "type": kind, "button": 0 });
        let actions = [button("pointerDown"), button("pointerUp")];
        let mouse = json!({ "type": "pointer", "id": "mouse", "actions": actions });
        self.command("POST", "/actions", &json!({ "actions": [mouse] }));
    }

    /// Presses the mouse at a point, moves it to another one, and releases it.
    pub(crate) fn drag(&self, (from_x, from_y): (i64, i64), (to_x, to_y): (i64, i64)) {
        let moved = |x, y| json!({ "type": "pointerMove", "duration": 0, "x": x, "y": y });
        let button = |kind| json!({ "type": kind, "button": 0 });
        let mut actions = vec![moved(from_x, from_y), button("pointerDown")];
        if (from_x, from_y) != (to_x, to_y) {
            actions.extend([moved((from_x + to_x) / 2, (from_y + to_y) / 2), moved(to_x, to_y)]);
        }
        actions.push(button("pointerUp"));
        let mouse = json!({ "type": "pointer", "id": "mouse", "actions": actions });
        self.command("POST", "/actions", &json!({ "actions": [mouse] }));
    }

    /// Clicks a point twice.
    pub(crate) fn double_click(&self, (x, y): (i64, i64)) {
        let mut actions = vec![json!({ "type": "pointerMove", "duration": 0, "x": x, "y": y })];
        for kind in ["pointerDown", "pointerUp", "pointerDown", "pointerUp"] {
            actions.push(json!({ "type": kind, "button": 0 }));
        }
        let mouse = json!({ "type": "pointer", "id": "mouse", "actions": actions });
        self.command("POST", "/actions", &json!({ "actions": [mouse] }));
    }

    /// Moves the focus by the Tab key until it is on an element.
    pub(crate) fn tab_to(&self, selector: &str) {
        let (css, text) = selector.split_once(" >> ").unwrap_or((selector, ""));
        let is_there = format!(
            "const at = document.activeElement; return !!at && at.matches({}) && at.innerText.includes({})",
            json!(css),
            json!(text)
        );
        for _ in 0..200 {
            if self.script(&is_there) == Value::Bool(true) {
                return;
            }
            self.press(keys::TAB);
        }
        panic!("the Tab key does not reach `{selector}`\n{}", self.state());
    }

    /// The errors and warnings of the console since the last call, without advice of the browser.
    pub(crate) fn console(&self) -> Vec<String> {
        let messages = self.command("POST", "/se/log", &json!({ "type": "browser" }));
        let messages = messages.as_array().cloned().unwrap_or_default();
        // Advice of the browser has the lowest level.
        let texts = messages
            .iter()
            .filter(|of| of["level"] != "DEBUG" && of["level"] != "INFO")
            .map(|of| format!("{}: {}", of["level"], of["message"]));
        texts.collect()
    }

    /// Fails on any message of the console, and so on violations of the Content-Security-Policy.
    pub(crate) fn require_quiet_console(&self) {
        let console = self.console();
        assert!(console.is_empty(), "{}: {console:#?}", self.url());
    }

    /// Writes a picture of the page as PNG.
    pub(crate) fn screenshot(&self, path: &Path) {
        let picture = self.command("GET", "/screenshot", &Value::Null);
        let picture = decode_base64(picture.as_str().expect("base64"));
        std::fs::write(path, picture).expect("writable");
    }

    /// Writes a picture of the whole page, beyond the window.
    pub(crate) fn full_screenshot(&self, path: &Path) {
        let parameters = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.developer_tools("Page.captureScreenshot", &parameters);
        let picture = decode_base64(picture["data"].as_str().expect("base64"));
        std::fs::write(path, picture).expect("writable");
    }

    /// The findings of axe-core at WCAG AA, as texts.
    pub(crate) fn axe(&self) -> Vec<String> {
        let path = std::env::var("AXE_CORE").expect("AXE_CORE: run `cargo xtask server`");
        let source = std::fs::read_to_string(&path).expect("axe-core");
        self.script(&source);
        let run = "const done = arguments[arguments.length - 1]; \
            axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }) \
            .then(result => done(result.violations), error => done([{ id: String(error), nodes: [] }]))";
        let violations = self.async_script(run);
        let violations = violations.as_array().cloned().unwrap_or_default();
        let texts = violations.iter().map(|of| {
            let nodes = of["nodes"].as_array().cloned().unwrap_or_default();
            let nodes: Vec<String> = nodes
                .iter()
                .map(|node| format!("{} {}", node["target"], node["failureSummary"]))
                .collect();
            format!("{}: {}", of["id"], nodes.join("; "))
        });
        texts.collect()
    }

    /// Fails on findings of axe-core in both themes.
    pub(crate) fn require_accessible(&self) {
        for theme in ["light", "dark"] {
            self.use_theme(theme);
            let findings = self.axe();
            assert!(findings.is_empty(), "{} in {theme}: {findings:#?}", self.url());
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let path = format!("/session/{}", self.session);
            let host = self.address.to_string();
            // Ends the browser, which the driver would leave running.
            let _ = http::send(self.address, &format!("DELETE {path}"), &[("host", &host)], "");
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn decode_base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().filter_map(value).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let bits = group
            .iter()
            .fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit));
        let bits = bits << (6 * (4 - group.len()));
        bytes.extend(bits.to_be_bytes().into_iter().skip(1).take(group.len() - 1));
    }
    bytes
}
