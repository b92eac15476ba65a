//! Attacks on every form: requests of other origins, scripts in fields, kept pages.

use limiter_server::admin::pages::forms::FORMS;

use super::undo::with_objects;
use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::{Browser, encode};
use crate::support::http::Response;

/// Contains all characters that end an attribute, a text or a script.
const ATTACK: &str = "</textarea><script>alert(1)</script>\"'&x";
/// The beginning of the attack as a browser would run it.
const UNESCAPED: &str = "<script>alert(1)";

/// The parameters of pages.
pub(crate) const PARAMETERS: &str = "next token notice key policy at time hours allowed denied \
    would_deny domain entries descriptor scope enforcement start reason object actor before after q app as with";

/// A form of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Form {
    action: String,
    is_post: bool,
    /// The fields, also hidden ones: name, value.
    fields: Vec<(String, String)>,
}

/// The value of an attribute, without HTML escapes.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    Some(unescape(rest.split('"').next()?))
}

pub(super) fn unescape(text: &str) -> String {
    [
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&#38;", "&"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (escape, plain)| {
        text.replace(escape, plain)
    })
}

/// The forms of a page.
fn forms(page: &str) -> Vec<Form> {
    let forms = page.split("<form ").skip(1).map(|rest| {
        let (tag, body) = rest.split_once('>').unwrap();
        let body = body.split("</form>").next().unwrap();
        let tag = format!(" {tag}");
        let mut fields = Vec::new();
        for part in body.split('<').skip(1) {
            let Some(name) = attribute(part, "name") else {
                continue;
            };
            if part.starts_with("input ") {
                let kind = attribute(part, "type").unwrap_or_default();
                let is_box = matches!(kind.as_str(), "radio" | "checkbox");
                if is_box && !part.contains(" checked") {
                    continue;
                }
                let value = attribute(part, "value").unwrap_or_default();
                fields.push((name, value));
            } else if part.starts_with("textarea ") {
                let text = part.split_once('>').map_or("", |(_, text)| text);
                fields.push((name, unescape(text)));
            } else if part.starts_with("select ") {
                let marker = format!("<{part}");
                let (_, options) = body.split_once(&marker).unwrap();
                let option = options.split("<option").nth(1).unwrap_or_default();
                let value = attribute(option, "value");
                let text = option.split(['>', '<']).nth(1).unwrap_or_default();
                fields.push((name, value.unwrap_or_else(|| unescape(text))));
            }
        }
        Form {
            action: attribute(&tag, "action").unwrap_or_default(),
            is_post: tag.contains("method=\"post\""),
            fields,
        }
    });
    forms.collect()
}

/// Returns whether the test sends the form. Forms that end its own session or change its password
/// are not sent.
fn is_sent(form: &Form) -> bool {
    let ends_session = ["/signout", "/account/password", "/users/root"];
    !ends_session.iter().any(|of| form.action.contains(of)) && !form.action.starts_with("/setup")
}

/// Sends a text in every field of every form of every page. Returns the number of fields.
pub(crate) fn send_in_every_field(
    browser: &mut Browser,
    text: &str,
    mut check: impl FnMut(&str, &Response),
) -> usize {
    let mut tried = 0;
    let mut sent: Vec<Form> = Vec::new();
    for page in crate::PAGES {
        let answer = browser.get(page);
        for form in forms(&answer.body).into_iter().filter(is_sent) {
            if sent.contains(&form) {
                continue;
            }
            sent.push(form.clone());
            for (attacked, _) in &form.fields {
                let fields: Vec<(&str, &str)> = form
                    .fields
                    .iter()
                    .map(|(name, value)| match name == attacked {
                        true => (name.as_str(), text),
                        false => (name.as_str(), value.as_str()),
                    })
                    .collect();
                let answer = match form.is_post {
                    true => browser.post(&form.action, &fields),
                    false => {
                        let query = fields
                            .iter()
                            .map(|(name, value)| format!("{name}={}", encode(value)));
                        browser.get(&format!(
                            "{}?{}",
                            form.action,
                            query.collect::<Vec<_>>().join("&")
                        ))
                    }
                };
                let shown = format!("{page}: {} {attacked}", form.action);
                assert!(answer.status < 500, "{shown}: {}", answer.status);
                check(&shown, &answer);
                tried += 1;
            }
        }
    }
    tried
}

#[test]
fn scripts_in_every_field_of_every_form_are_text() {
    let (_server, mut browser) = with_objects();
    let tried = send_in_every_field(&mut browser, ATTACK, |shown, answer| {
        assert!(
            !answer.body.contains(UNESCAPED),
            "{shown} is reflected:\n{}",
            answer.body
        );
    });
    assert!(tried > 100, "{tried} fields");
    // The accepted texts are stored now.
    for page in crate::PAGES {
        let answer = browser.get(page);
        assert!(!answer.body.contains(UNESCAPED), "{page}:\n{}", answer.body);
    }
    let changes = browser.get("/e/default/changes").body;
    assert!(changes.contains("&#60;script&#62;alert(1)"), "{changes}");
}

#[test]
fn scripts_in_every_parameter_of_every_page_are_text() {
    let (_server, browser) = with_objects();
    for page in crate::PAGES {
        let path = page.split('?').next().unwrap_or_default();
        for name in PARAMETERS.split_whitespace() {
            let query = page.split_once('?').map_or("", |(_, query)| query);
            let others = query
                .split('&')
                .filter(|pair| !pair.starts_with(&format!("{name}=")));
            let attack = format!("{name}={}", encode(ATTACK));
            let query: Vec<&str> = others.chain([&*attack]).collect();
            let answer = browser.get(&format!("{path}?{}", query.join("&")));
            assert!(answer.status < 500, "{page} {name}: {}", answer.status);
            assert!(
                !answer.body.contains(UNESCAPED),
                "{page} {name}:\n{}",
                answer.body
            );
        }
    }
}

#[test]
fn every_form_rejects_requests_of_other_origins() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let browser = Browser::signed_in(&server, "root");
    for form in FORMS {
        let path = form
            .action
            .replace("{environment}", "default")
            .replace("{app}", "shop")
            .replace("{name}", "search")
            .replace("{id}", "0");
        for header in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("origin", "http://evil.example"),
            ("origin", "null"),
        ] {
            let answer = browser.send("POST", &path, &[header], "name=x");
            assert_eq!(answer.status, 403, "{path}: {header:?}");
        }
    }
    let users = browser.get("/settings");
    assert_eq!(users.status, 200, "the session is still valid");
}

#[test]
fn pages_are_not_kept_and_cannot_be_framed() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    for page in crate::PAGES {
        let answer = browser.get(page);
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{page}");
        assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{page}");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.contains("frame-ancestors 'none'"), "{page}: {policy}");
    }
    let kept = browser.clone();
    let answer = browser.post("/signout", &[]);
    assert_eq!(
        answer.header("clear-site-data"),
        Some("\"cache\", \"storage\""),
        "{}",
        answer.status
    );
    for page in crate::PAGES {
        if page.starts_with("/signin") || page.starts_with("/setup?") {
            continue;
        }
        let answer = kept.get(page);
        assert_eq!(answer.status, 303, "{page}");
        assert!(!answer.body.contains("search"), "{page}");
    }
}

/// BREACH needs a secret and a text of the request in one compressed answer.
#[test]
fn answers_with_secrets_are_not_compressed() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let browser = Browser::signed_in(&server, "root");
    let gzip = ("accept-encoding", "gzip");
    let page = browser.send_raw("GET", "/e/default/tokens", &[gzip], "");
    assert!(page.head.contains("content-encoding: gzip"), "{}", page.head);
    let same_origin = ("sec-fetch-site", "same-origin");
    let fields = "name=ci&scopes=check%3A*&days=30";
    let created = browser.send_raw("POST", "/e/default/tokens", &[gzip, same_origin], fields);
    assert!(!created.head.contains("content-encoding"), "{}", created.head);
    assert!(String::from_utf8_lossy(&created.body).contains("lim_"));
    // No page has a token in its forms.
    for page in crate::PAGES {
        let page = browser.get(page).body;
        assert!(!page.contains("csrf"), "{page}");
    }
}
