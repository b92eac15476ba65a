//! Facts of pages: words beside colours, unknown values, search, warnings, origins.

use serde_json::{Value, json};

use super::edit::{SEARCH, bucket};
use crate::support::admin::{AdminClient, PASSWORD, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::http;
use crate::support::server::{Directory, Server, run, wait_until};

fn check(server: &Server, key: &str) -> u16 {
    let body = json!({ "policy": "search", "key": key }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

/// A server with the policy `search`, and a browser of its administrator.
fn with_policy(text: &str) -> (Server, AdminClient, Browser) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, text);
    assert_eq!(saved.status, 200, "{}", saved.body);
    let browser = Browser::signed_in(&server, "root");
    (server, root, browser)
}

#[test]
fn coloured_states_have_a_word() {
    let (server, _root, browser) = with_policy(&policy("search", 5, "shop"));
    wait_until(|| check(&server, "acme") == 429, || server.log());
    let mut states = 0;
    for page in crate::PAGES {
        for rest in browser.get(page).body.split("class=\"state ").skip(1) {
            let text = rest.split(['>', '<']).nth(1).unwrap_or_default();
            assert!(text.chars().any(char::is_alphabetic), "{page}: {text}");
            states += 1;
        }
    }
    assert!(states > 20, "{states}");
    let page = browser.get("/e/default/now").body;
    assert!(
        page.contains("<span class=\"state bad\">Full</span> 100 %"),
        "{page}"
    );
}

#[test]
fn plot_without_decisions_states_no_count() {
    let (_server, _root, browser) = with_policy(&policy("search", 5, "shop"));
    let page = browser.get(SEARCH).body;
    let (_, caption) = page.split_once("<figcaption").unwrap();
    let caption = caption.split("</figcaption>").next().unwrap();
    assert!(
        caption.contains("No decision was recorded.") && !caption.contains("llowed 0"),
        "{caption}"
    );
}

#[test]
fn search_finds_apps_without_policies_and_customers() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let path = "/namespaces/default/apps/mobile";
    assert_eq!(root.send("PUT", path, &[], &json!({})).status, 204);
    root.add_user("vera", &[("shop", "viewer")]);
    let page = browser.get("/e/default/search?q=OBI").body;
    assert!(
        page.contains("<a href=\"/e/default/apps/mobile\">mobile</a>"),
        "{page}"
    );
    let page = browser.get("/e/default/search?q=shop").body;
    assert!(
        page.contains("<a href=\"/e/default/apps/shop\">shop</a>"),
        "{page}"
    );
    assert!(
        page.contains("href=\"/e/default/customers?key=shop\">Show the customer shop"),
        "{page}"
    );
    let page = Browser::signed_in(&_server, "vera")
        .get("/e/default/search?q=mobile")
        .body;
    assert!(!page.contains("/apps/mobile"), "an app of others: {page}");
}

#[test]
fn preview_warns_of_large_changes_and_resets() {
    let (_server, _root, mut browser) = with_policy(&policy("search", 5, "shop"));
    let path = format!("{SEARCH}/edit");
    let mut warnings = |changes: &[(&'static str, &'static str)]| {
        let mut fields = bucket("1", "5");
        fields.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
        fields.extend(changes);
        let page = browser.post(&path, &fields).body;
        let (_, rest) = page
            .split_once("<h3>Warnings</h3>")
            .unwrap_or_else(|| panic!("{page}"));
        rest.split("</ul>").next().unwrap().to_owned()
    };
    let larger = warnings(&[("burst", "11")]);
    assert!(
        larger.contains("The capacity is more than twice the previous one."),
        "{larger}"
    );
    let off = warnings(&[("enforcement", "off")]);
    assert!(
        off.contains("limits nothing while its enforcement is off"),
        "{off}"
    );
    let reset = warnings(&[("inheritance", "reset")]);
    assert!(reset.contains("The usage of all keys is reset"), "{reset}");
}

#[test]
fn new_policies_start_in_shadow_and_leave_it_with_their_counts() {
    let shadow = policy("search", 1, "shop") + "enforcement = 'shadow'\n";
    let (server, _root, mut browser) = with_policy(&shadow);
    let page = browser.get("/e/default/new").body;
    assert!(
        page.contains("name=\"enforcement\" value=\"shadow\" checked"),
        "{page}"
    );
    wait_until(|| check(&server, "acme") == 200, || server.log());
    for _ in 0..2 {
        assert_eq!(check(&server, "acme"), 200);
    }
    let page = || {
        browser
            .clone()
            .post(&format!("{SEARCH}/edit"), &bucket("1", "1"))
            .body
    };
    let counted = "Of 3 calls in the last 24 hours, 2 would have been denied (66.7 %)";
    wait_until(|| page().contains(counted), page);
    let page = browser.post(&format!("{SEARCH}/edit"), &bucket("1", "1")).body;
    assert!(page.contains("The policy denies calls from now on"), "{page}");
}

#[test]
fn explanation_reads_the_time_of_the_form() {
    let (server, root, browser) = with_policy(&policy("search", 1, "shop"));
    wait_until(|| check(&server, "acme") == 429, || server.log());
    let keys = root.get("/namespaces/default/keys/activity?policy=search").json();
    let at = keys["keys"][0]["last_at"].as_i64().unwrap();
    let time = jiff::Timestamp::from_microsecond(at)
        .unwrap()
        .strftime("%Y-%m-%dT%H:%M");
    let page = browser
        .get(&format!("/e/default/explain?policy=search&key=acme&time={time}"))
        .body;
    assert!(
        page.contains("1 denied call, the last at <time") && page.contains("at node"),
        "{page}"
    );
    let wrong = browser.get("/e/default/explain?policy=search&time=14:03").body;
    assert!(wrong.contains("The time is not like"), "{wrong}");
}

#[test]
fn rules_of_one_group_are_marked() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let rules = "[[rule]]\nmatch = ['customer']\npolicy = 'search'\ngroup = 'login'\n\n\
                 [[rule]]\nmatch = ['address']\npolicy = 'search'\n";
    let body = json!({ "toml": rules });
    let saved = root.send(
        "PUT",
        "/namespaces/default/rules",
        &[("if-none-match", "*")],
        &body,
    );
    assert_eq!(saved.status, 200, "{}", saved.body);
    let page = browser.get("/e/default/rules").body;
    assert!(page.contains("all or nothing in <code>login</code>"), "{page}");
    assert_eq!(page.matches("with limits of the same key").count(), 1, "{page}");
}

#[test]
fn rules_are_compared_restored_and_explained_by_their_history() {
    let (_server, root, mut browser) = with_policy(&policy("search", 5, "shop"));
    let micros = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_micros()
    };
    let text = |entry: &str| format!("[[rule]]\nmatch = ['{entry}']\npolicy = 'search'\n");
    let save = |condition, entry: &str| {
        let body = json!({ "toml": text(entry) });
        let saved = root.send("PUT", "/namespaces/default/rules", &[condition], &body);
        assert_eq!(saved.status, 200, "{}", saved.body);
    };
    save(("if-none-match", "*"), "customer");
    let first = micros();
    save(("if-match", "1"), "address");
    let changes = browser.get("/e/default/changes").body;
    assert!(
        changes.contains("href=\"/e/default/rules/history/1\""),
        "{changes}"
    );
    let page = browser.get("/e/default/rules").body;
    assert!(page.contains("href=\"/e/default/rules/history/1\""), "{page}");

    let explain = |at: u128| {
        browser
            .get(&format!("/e/default/explain?policy=search&at={at}"))
            .body
    };
    let (then, now) = (explain(first), explain(micros()));
    assert!(
        then.contains("<code>customer</code>") && !then.contains("<code>address</code>"),
        "{then}"
    );
    assert!(
        now.contains("<code>address</code>") && !now.contains("<code>customer</code>"),
        "{now}"
    );

    let page = browser.get("/e/default/rules/history/2?with=1").body;
    assert!(page.contains("-match = ") && page.contains("+match = "), "{page}");
    let page = browser.get("/e/default/rules/history/1").body;
    assert!(page.contains("Preview revision 1"), "{page}");
    assert_eq!(browser.get("/e/default/rules/history/9").status, 404);
    let old = root.get("/namespaces/default/rules/history/1").json();
    let fields = [
        ("toml", old["toml"].as_str().unwrap()),
        ("revision", "2"),
        ("reason", "restored revision 1"),
    ];
    let preview = browser.post("/e/default/rules/preview", &fields).body;
    assert!(
        preview.contains("Save rules") && preview.contains("Undo"),
        "{preview}"
    );
    assert_eq!(browser.post("/e/default/rules", &fields).status, 303);
    let page = browser.get("/e/default/rules").body;
    assert!(
        page.contains("<code>customer</code>") && page.contains("restored revision 1"),
        "{page}"
    );
}

#[test]
fn policy_of_a_repository_is_read_only_except_for_quotas() {
    let directory = Directory::new();
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let file = directory.write("policies.toml", &policy("search", 5, "shop"));
    let file = file.to_str().unwrap();
    let (code, _, errors) = run(&[
        "policy",
        "apply",
        "-f",
        file,
        "--managed-by",
        "git.example/limits",
        "--database",
        &url,
    ]);
    assert_eq!(code, Some(0), "{errors}");
    let server = crate::support::admin::with_database(directory, &url, &[]);
    let root = AdminClient::set_up(&server);
    let page = root.page(SEARCH).body;
    assert!(page.contains("managed by git.example/limits"), "{page}");
    assert!(!page.contains(&format!("{SEARCH}/edit")), "{page}");
    assert!(page.contains("Set the quota of a key"), "{page}");
    let saved = root.put_policy("search", 1, &policy("search", 6, "shop"));
    assert_eq!(saved.status, 409, "{}", saved.body);
}

#[test]
fn session_of_another_machine_has_the_host_prefix() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let browser = Browser::new(server.admin());
    let fields = format!("user=root&password={}", PASSWORD.replace(' ', "+"));
    let sign_in = |host: &str| {
        let headers = [("host", host), ("sec-fetch-site", "same-origin")];
        let answer = browser.send("POST", "/signin", &headers, &fields);
        assert_eq!(answer.status, 303, "{}", answer.body);
        answer.header("set-cookie").unwrap().to_owned()
    };
    let cookie = sign_in("10.0.0.1");
    assert!(cookie.starts_with("__Host-limiter="), "{cookie}");
    for attribute in ["; Path=/", "; Secure", "; HttpOnly", "; SameSite=Lax"] {
        assert!(cookie.contains(attribute), "{attribute}: {cookie}");
    }
    assert!(!cookie.contains("Domain"), "{cookie}");
    assert!(sign_in("127.0.0.1").starts_with("limiter="));
}

#[test]
fn day_of_the_last_use_of_a_token_names_its_zone() {
    let (server, root, _) = with_policy(&policy("search", 5, "shop"));
    let body = json!({ "name": "ci", "scopes": ["check:*"], "expires_in_days": 9 });
    let created = root.send("POST", "/namespaces/default/tokens", &[], &body).json();
    let bearer = format!("Bearer {}", created["secret"].as_str().unwrap());
    let call = json!({ "policy": "search", "key": "acme" }).to_string();
    let is_used = || {
        let headers = [("authorization", bearer.as_str())];
        let _ = http::post(server.http(), "/v1/check", &headers, &call);
        let tokens = root.get("/namespaces/default/tokens").json();
        tokens["tokens"][0]["used_day"] != Value::Null
    };
    wait_until(is_used, || server.log());
    let page = root.page("/e/default/tokens").body;
    let (_, used) = page.split_once("data-label=\"last used\">").unwrap();
    assert!(used.split('<').next().unwrap().ends_with(" UTC"), "{page}");
}

#[test]
fn pages_of_an_app_have_titles_of_their_own() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let browser = Browser::signed_in(&server, "root");
    for (page, title) in [
        ("", "shop"),
        ("/connect", "shop: Connect"),
        ("/people", "shop: People"),
        ("/tokens", "shop: Tokens"),
        ("/changes", "shop: Changes"),
    ] {
        let page = browser.get(&format!("/e/default/apps/shop{page}")).body;
        assert!(page.contains(&format!("<title>{title} · default")), "{page}");
    }
}
