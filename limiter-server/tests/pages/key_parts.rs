//! Keys by their declared parts, and policies that are created as text.

use serde_json::json;

use super::attacks::unescape;
use super::truth::{check, with_policy};
use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::server::wait_until;

#[test]
fn key_with_other_parts_is_not_known() {
    let text = policy("search", 2, "shop") + "key = ['tenant', 'user']\n";
    let (server, root, browser) = with_policy(&text);
    let one = policy("login", 3, "shop") + "key = ['tenant']\n";
    assert_eq!(root.put_policy("login", 0, &one).status, 200);
    assert_eq!(
        root.put_policy("plain", 0, &policy("plain", 4, "shop")).status,
        200
    );
    let row = |page: &str, name: &str| {
        let link = format!("<a href=\"/e/default/policies/{name}\">{name}</a></th>");
        let (_, rest) = page.split_once(&link)?;
        rest.split("</tr>").next().map(str::to_owned)
    };
    let get = |key: &str| browser.get(&format!("/e/default/customers?key={key}")).body;
    let is_published = || get("acme").matches("Not used").count() == 2;
    wait_until(is_published, || server.log());
    let page = get("acme");
    let search = row(&page, "search").unwrap();
    assert!(
        search.contains("Not known") && search.contains("a key has the parts tenant, user"),
        "{search}"
    );
    assert!(!search.contains("Raise"), "no call has this key: {search}");
    assert!(row(&page, "login").unwrap().contains(">3<"), "{page}");
    let page = get("acme%20/%20ann");
    assert!(row(&page, "search").unwrap().contains(">2<"), "{page}");
    assert!(
        row(&page, "login").unwrap().contains("a key has the part tenant"),
        "{page}"
    );

    // One part in the policies that declare it.
    wait_until(|| check(&server, &json!(["acme", "ann"])) == 429, || server.log());
    let page = get("tenant%3Dacme");
    assert!(page.contains("Keys whose tenant is acme"), "{page}");
    assert!(row(&page, "login").unwrap().contains(">3<"), "{page}");
    assert!(row(&page, "search").unwrap().contains("Not known"), "{page}");
    assert!(row(&page, "plain").is_none(), "{page}");
    let denied = "<a href=\"/e/default/customers?key=acme%20%2F%20ann\">acme / ann</a>";
    assert!(page.contains(denied), "{page}");
    assert!(
        page.contains("Block keys") && page.contains("name=\"kind\" value=\"part\""),
        "{page}"
    );
    let other = get("tenant%3Dother");
    assert!(!other.contains(denied), "{other}");
    // A text with an equals sign that is no declared part is a key, and so is a requested one.
    let page = get("colour%3Dred");
    assert!(
        page.contains("<h2>colour=red</h2>") && row(&page, "plain").is_some(),
        "{page}"
    );
    let page = get("tenant%3Dacme&whole=1");
    assert!(
        page.contains("<h2>tenant=acme</h2>") && row(&page, "plain").is_some(),
        "{page}"
    );
}

#[test]
fn block_of_a_declared_part_denies_its_keys() {
    let text = policy("search", 50, "shop") + "key = ['tenant', 'user']\n";
    let (server, _root, mut browser) = with_policy(&text);
    let status = |tenant: &str| check(&server, &json!([tenant, "ann"]));
    wait_until(|| status("acme") == 200, || server.log());
    let fields = [
        ("kind", "part"),
        ("key", "tenant=acme"),
        ("app", ""),
        ("until", ""),
        ("reason", "spam"),
    ];
    assert_eq!(browser.post("/e/default/blocks", &fields).status, 303);
    wait_until(|| status("acme") == 403, || server.log());
    assert_eq!(status("other"), 200);
    let explain = |key: &str| {
        let path = format!("/e/default/explain?policy=search&key={key}%20/%20ann");
        browser.get(&path).body
    };
    assert!(
        explain("acme").contains("keys with tenant=acme"),
        "{}",
        explain("acme")
    );
    assert!(explain("other").contains("none applied"), "{}", explain("other"));
}

/// Programs send `user:7` as one text, whose colon is not escaped, or as a part, whose colon is.
#[test]
fn key_with_colon_is_shown_reset_and_raised() {
    let (server, _root, mut browser) = with_policy(&policy("search", 2, "shop"));
    let fields = [("policy", "search"), ("key", "user:7")];
    for key in [json!("user:7"), json!(["user:7"])] {
        wait_until(|| check(&server, &key) == 429, || server.log());
        let page = browser.get("/e/default/customers?key=user%3A7").body;
        assert!(page.contains("Nothing left"), "{key}: {page}");
        let reset = browser.post("/e/default/customers/reset", &fields);
        assert_eq!(reset.status, 303, "{}", reset.body);
        assert_eq!(check(&server, &key), 200, "{key}");
    }
    let numbers = [("requests", "1"), ("per", "1h"), ("burst", "10"), ("until", "")];
    let raise = [fields.as_slice(), &numbers].concat();
    let raised = browser.post("/e/default/customers/raise", &raise);
    assert_eq!(raised.status, 303, "{}", raised.body);
    let page = browser.get("/e/default/customers?key=user%3A7").body;
    assert!(page.contains("own quota"), "{page}");
    let explained = browser.get("/e/default/explain?policy=search&key=user%3A7").body;
    assert!(explained.contains("a quota of 10 for this key"), "{explained}");
    for key in [json!("user:7"), json!(["user:7"])] {
        let all_ten_pass = || {
            let reset = browser.post("/e/default/customers/reset", &fields);
            assert_eq!(reset.status, 303, "{}", reset.body);
            (0..10).all(|_| check(&server, &key) == 200)
        };
        wait_until(all_ten_pass, || server.log());
    }
}

#[test]
fn denied_key_is_not_shown_as_exhausted() {
    let text = policy("search", 2, "shop") + "deny_keys = ['eve']\n";
    let (server, root, browser) = with_policy(&text);
    let block = json!({ "key": "acme", "for_seconds": 600 });
    let blocked = root.send("POST", "/namespaces/default/blocks", &[], &block);
    assert_eq!(blocked.status, 200, "{}", blocked.body);
    for (key, word) in [("acme", "Blocked"), ("eve", "On the deny list")] {
        wait_until(|| check(&server, &json!(key)) == 403, || server.log());
        let page = browser.get(&format!("/e/default/customers?key={key}")).body;
        assert!(
            page.contains(&format!("<span class=\"state bad\">{word}</span>")),
            "{page}"
        );
        for wrong in ["Nothing left", "nothing is used", "customers/reset"] {
            assert!(!page.contains(wrong), "{key}: {wrong}: {page}");
        }
        let before = format!("A block denies the calls of {key}.");
        assert_eq!(page.contains(&before), key == "acme", "{page}");
    }
}

#[test]
fn policy_is_created_from_text() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let mut browser = Browser::signed_in(&server, "root");
    let page = browser.get("/e/default/new?app=shop").body;
    assert!(
        page.contains("<button name=\"as\" value=\"toml\" formnovalidate>TOML</button>"),
        "{page}"
    );
    let page = browser.get("/e/default/new?app=shop&as=toml").body;
    assert!(page.contains("[policy.new-policy]"), "{page}");
    assert!(!page.contains("name=\"name\""), "the name is in the text: {page}");
    for (text, problem) in [
        ("[policy.a]\n[policy.b]\n", "no [policy.NAME], or several"),
        ("[policy.a]\nalgorithm = 'none'\n", "algorithm"),
    ] {
        let refused = browser.post("/e/default/new", &[("text", text)]);
        assert_eq!(refused.status, 422, "{}", refused.body);
        assert!(refused.body.contains(problem), "{}", refused.body);
        assert!(
            refused.body.contains("<textarea name=\"text\""),
            "{}",
            refused.body
        );
    }
    let text = policy("search", 5, "shop");
    let preview = browser.post("/e/default/new", &[("text", &text)]);
    assert_eq!(preview.status, 200, "{}", preview.body);
    let save = "/e/default/policies/search/save";
    assert!(
        preview.body.contains(&format!("action=\"{save}\"")),
        "{}",
        preview.body
    );
    let saved = browser.post(save, &[("text", &text), ("revision", "0"), ("reason", "text")]);
    assert_eq!(saved.status, 303, "{}", saved.body);
    let stored = root.get("/namespaces/default/policies/search").json();
    assert_eq!(stored["revision"], 1, "{stored}");
}

#[test]
fn declared_parts_of_a_key_have_fields() {
    let text = policy("search", 5, "shop") + "key = ['tenant', 'user']\n";
    let (server, root, mut browser) = with_policy(&text);
    let key = json!(["acme:eu", "ann"]);
    for _ in 0..3 {
        assert_eq!(check(&server, &key), 200);
    }
    let labels = [
        "<label>tenant <input name=\"part_0\"",
        "<label>user <input name=\"part_1\"",
    ];
    let explain = "/e/default/explain?policy=search";
    let pages = ["/e/default/customers", explain, "/e/default/policies/search/edit"];
    for page in pages {
        let body = browser.get(page).body;
        assert!(labels.iter().all(|label| body.contains(label)), "{page}\n{body}");
    }
    let page = browser
        .get(&format!("{explain}&part_0=acme%3Aeu&part_1=ann"))
        .body;
    assert!(page.contains("<dt>Key acme:eu / ann</dt>"), "{page}");
    assert!(page.contains("name=\"part_1\" value=\"ann\""), "{page}");
    let customers = "/e/default/customers?names=tenant%0Auser";
    for (parts, expected) in [
        ("part_0=acme%3Aeu&part_1=ann", "key=acme%3Aeu%20%2F%20ann&whole=1"),
        ("part_0=&part_1=ann", "key=user%3Dann"),
        (
            "part_0=a%20/%20b&part_1=ann",
            "key=a%20%5C%2F%20b%20%2F%20ann&whole=1",
        ),
    ] {
        let found = browser.get(&format!("{customers}&{parts}"));
        let expected = format!("/e/default/customers?{expected}");
        assert_eq!(
            found.header("location"),
            Some(expected.as_str()),
            "{}",
            found.body
        );
    }
    let page = browser
        .get("/e/default/customers?key=acme%3Aeu%20/%20ann&whole=1")
        .body;
    assert!(page.contains("data-label=\"Left\">2<"), "{page}");
    let fields = [
        ("revision", "1"),
        ("algorithm", "token_bucket"),
        ("requests", "1"),
        ("per", "1h"),
        ("burst", "10"),
        ("key_parts", "tenant, user"),
        ("part_0", "acme:eu"),
        ("part_1", "ann"),
    ];
    let preview = browser.post("/e/default/policies/search/edit", &fields);
    assert_eq!(preview.status, 200, "{}", preview.body);
    assert!(
        preview.body.contains("<th scope=\"row\">acme:eu / ann</th>"),
        "{}",
        preview.body
    );
    let audit = root.get("/namespaces/default/audit").body;
    assert!(audit.contains("key.read"), "{audit}");
}

/// A client chooses its key, also one that looks like two parts.
#[test]
fn key_with_separator_is_one_part_on_pages() {
    let (server, _root, mut browser) = with_policy(&policy("search", 2, "shop"));
    let (text, parts) = (json!("acme / ann"), json!(["acme", "ann"]));
    wait_until(|| check(&server, &text) == 429, || server.log());
    let now = browser.get("/e/default/now").body;
    let (_, link) = now
        .split_once("<th scope=\"row\"><a href=\"/e/default/customers")
        .unwrap_or_else(|| panic!("{now}"));
    let link = link.split('"').next().unwrap();
    let page = browser.get(&format!("/e/default/customers{link}")).body;
    assert!(page.contains("Nothing left"), "{page}");
    let (_, shown) = page.split_once("name=\"key\" value=\"").unwrap();
    let shown = unescape(shown.split('"').next().unwrap());
    assert_eq!(shown, r"acme \/ ann");

    assert_eq!(check(&server, &parts), 200, "another key");
    let reset = [("policy", "search"), ("key", &*shown)];
    assert_eq!(browser.post("/e/default/customers/reset", &reset).status, 303);
    assert_eq!(check(&server, &text), 200);
    assert_eq!(browser.post("/e/default/blocks", &[("key", &*shown)]).status, 303);
    wait_until(|| check(&server, &text) == 403, || server.log());
    assert_eq!(check(&server, &parts), 200, "another key");
}
