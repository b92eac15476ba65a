//! The functions behind the tasks of the guide.

use std::time::Duration;

use limiter_testing::{Proxy, RedisServer};
use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::http;
use crate::support::server::{Server, wait_until};

const SEARCH: &str = "/e/default/policies/search";
const API: &str = "/namespaces/default/policies/search";

fn check(server: &Server, key: &Value) -> u16 {
    let body = json!({ "policy": "search", "key": key }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

/// A server with the policy `search` of five calls in force, and a browser of its administrator.
fn with_policy(args: &[&str]) -> (Server, AdminClient, Browser) {
    let server = with_sqlite(args);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    wait_until(|| check(&server, &json!("first")) == 200, || server.log());
    let browser = Browser::signed_in(&server, "root");
    (server, root, browser)
}

#[test]
fn customer_is_raised_until_a_time() {
    let (server, root, mut browser) = with_policy(&[]);
    let parts = json!(["acme:eu", "ann"]);
    for _ in 0..5 {
        assert_eq!(check(&server, &parts), 200);
    }
    assert_eq!(check(&server, &parts), 429);
    let page = browser.get("/e/default/customers?key=acme%3Aeu%20/%20ann").body;
    assert!(page.contains("Friday (UTC): Sat"), "{page}");
    assert!(page.contains("name=\"burst\" value=\"10\""), "{page}");
    let fields = [
        ("policy", "search"),
        ("key", "acme:eu / ann"),
        ("requests", "1"),
        ("per", "1h"),
        ("burst", "10"),
        ("until", "2090-12-31T18:00"),
        ("reason", "a sale"),
    ];
    let raised = browser.post("/e/default/customers/raise", &fields);
    assert_eq!(raised.status, 303, "{}", raised.body);
    let toml = root.get(API).json()["toml"].as_str().unwrap().to_owned();
    assert!(toml.contains("until = 2090-12-31T18:00:00Z"), "{toml}");
    let shown = browser.get(raised.header("location").unwrap()).body;
    assert!(
        shown.contains("own quota") && shown.contains("Raised."),
        "{shown}"
    );
    assert_eq!(check(&server, &parts), 429, "past calls still count");
    // The gateway has the quota when a reset key may make more calls than the policy permits.
    let fields = [("policy", "search"), ("key", "acme:eu / ann")];
    let all_ten_pass = || {
        let reset = browser.post("/e/default/customers/reset", &fields);
        assert_eq!(reset.status, 303, "{}", reset.body);
        (0..10).all(|_| check(&server, &parts) == 200)
    };
    wait_until(all_ten_pass, || server.log());
    assert_eq!(check(&server, &parts), 429);
    // The quota of another key is not that of this one.
    assert_eq!(root.get(API).json()["revision"], 2);
}

/// The page after a raise reads the state of the key once.
#[test]
fn raised_quota_is_shown_when_gateway_applies_it_late() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let (server, _root, mut browser) = with_policy(&["--redis", &proxy.url()]);
    proxy.set_delay(Duration::from_millis(20));
    let fields = [
        ("policy", "search"),
        ("key", "acme"),
        ("requests", "1"),
        ("per", "1h"),
        ("burst", "10"),
        ("until", ""),
    ];
    let raised = browser.post("/e/default/customers/raise", &fields);
    assert_eq!(raised.status, 303, "{}", raised.body);
    let shown = browser.get(raised.header("location").unwrap()).body;
    assert!(shown.contains("own quota"), "{shown}\n{}", server.log());
}

#[test]
fn trial_is_counted_and_adopted() {
    let (server, root, mut browser) = with_policy(&[]);
    let page = browser.get(SEARCH).body;
    assert!(page.contains("Try other numbers"), "{page}");
    let fields = [
        ("revision", "1"),
        ("requests", "1"),
        ("per", "1h"),
        ("burst", "2"),
        ("until", "2090-12-31T18:00"),
        ("reason", "enough?"),
    ];
    let started = browser.post(&format!("{SEARCH}/trial"), &fields);
    assert_eq!(started.status, 303, "{}", started.body);
    let page = browser.get(SEARCH).body;
    assert!(
        page.contains("<strong>no call was decided</strong> since <time"),
        "{page}"
    );
    let trial = || root.get(&format!("{API}/trial")).json();
    // The first call after the publication starts the usage of the trial.
    let mut number = 0;
    let mut counted = || {
        number += 1;
        let key = json!(format!("key {number}"));
        for _ in 0..4 {
            assert_eq!(check(&server, &key), 200);
        }
        let trial = trial();
        trial["trial"]["denied"].as_u64() >= Some(2) && trial["policy"]["denied"] == 0
    };
    wait_until(&mut counted, || trial().to_string());
    let page = browser.get(SEARCH).body;
    assert!(
        page.contains("would deny ") && page.contains("(now 0.0 %)"),
        "{page}"
    );
    assert!(page.contains("1 request an hour, with bursts of 2"), "{page}");
    let now = browser.get("/e/default/now").body;
    assert!(now.contains("would deny "), "{now}");
    let adopted = browser.post(&format!("{SEARCH}/trial/adopt"), &[("revision", "1")]);
    assert_eq!(adopted.status, 409, "the trial is newer than this revision");
    let adopted = browser.post(&format!("{SEARCH}/trial/adopt"), &[("revision", "2")]);
    assert_eq!(adopted.status, 303, "{}", adopted.body);
    let sentence = root.get(API).json()["sentence"].to_string();
    assert!(sentence.contains("bursts of 2"), "{sentence}");
    assert_eq!(root.get(&format!("{API}/trial")).status, 404);
    let fields = [&[("revision", "3")], &fields[1..]].concat();
    let again = browser.post(&format!("{SEARCH}/trial"), &fields);
    assert_eq!(again.status, 303, "{}", again.body);
    let dropped = browser.post(&format!("{SEARCH}/trial/drop"), &[("revision", "4")]);
    assert_eq!(dropped.status, 303, "{}", dropped.body);
    assert_eq!(root.get(&format!("{API}/trial")).status, 404);
}

#[test]
fn app_is_onboarded_and_connected() {
    let (server, _root, mut browser) = with_policy(&[]);
    let created = browser.post("/e/default/apps", &[("name", "mobile")]);
    assert_eq!(
        created.header("location"),
        Some("/e/default/apps/mobile?notice=app"),
        "{}",
        created.body
    );
    assert_eq!(browser.post("/e/default/apps", &[("name", "mobile")]).status, 409);
    let connect = "/e/default/apps/shop/connect";
    let page = browser.get(connect).body;
    assert!(
        page.contains("Seen</span> at") && page.contains("from 127.0.0.1"),
        "{page}"
    );
    let page = browser.get("/e/default/apps/mobile/connect").body;
    assert!(page.contains("for the first call to node"), "{page}");
    let sent = browser.post(&format!("{connect}/test"), &[("policy", "search")]);
    assert_eq!(
        sent.header("location"),
        Some("/e/default/policies/search?hours=1&allowed=5&denied=5&would_deny=0"),
        "{}",
        sent.body
    );
    let page = browser.get(sent.header("location").unwrap()).body;
    assert!(
        page.contains("Of 10 test calls, 5 were allowed and 5 denied."),
        "{page}"
    );
    assert!(
        page.contains("limiter-test"),
        "the test key is a denied key: {page}"
    );
    drop(server);
}

#[test]
fn denied_keys_lead_to_their_explanation() {
    let (server, root, browser) = with_policy(&[]);
    let key = json!(["acme", "ann"]);
    wait_until(|| check(&server, &key) == 429, || server.log());
    let keys = root.get("/namespaces/default/keys/activity?policy=search").json();
    let denied = &keys["keys"][0];
    assert_eq!(
        (&denied["key"], &denied["denied"], &denied["used_percent"]),
        (&json!("acme / ann"), &json!(1), &json!(100)),
        "{keys}"
    );
    for page in ["/e/default/now", SEARCH] {
        let page = browser.get(page).body;
        assert!(page.contains("customers?key=acme%20%2F%20ann"), "{page}");
    }
    let at = denied["last_at"].as_i64().unwrap();
    let path = format!("/e/default/explain?policy=search&key=acme%20/%20ann&at={at}");
    let page = browser.get(&path).body;
    assert!(
        page.contains("1 denied call, the last at <time") && page.contains("at node"),
        "{page}"
    );
    // Nothing is stated about the time before the process.
    let before = format!(
        "/e/default/explain?policy=search&key=acme&at={}",
        at - 3_600_000_000
    );
    let page = browser.get(&before).body;
    assert!(page.contains("<dd>not recorded</dd>"), "{page}");
}

#[test]
fn explanation_states_the_suspension_of_that_time() {
    let (server, root, browser) = with_policy(&[]);
    let micros = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        i64::try_from(now.unwrap().as_micros()).unwrap()
    };
    let before = micros();
    let body =
        json!({ "scope": "policy:search", "enforcement": "deny", "for_seconds": 600, "reason": "load test" });
    let created = root.send("POST", "/namespaces/default/suspensions", &[], &body);
    let id = created.json()["id"].as_str().unwrap().to_owned();
    let during = micros();
    let path = format!("/namespaces/default/suspensions/{id}");
    assert_eq!(root.send("DELETE", &path, &[], &Value::Null).status, 204);
    let after = micros();
    for (at, is_active) in [(before, false), (during, true), (after, false)] {
        let listed = root
            .get(&format!("/namespaces/default/suspensions?at={at}"))
            .json();
        let count = listed["suspensions"].as_array().unwrap().len();
        assert_eq!(count, usize::from(is_active), "{listed}");
        let path = format!("/e/default/explain?policy=search&key=acme&at={at}");
        let page = browser.get(&path).body;
        assert_eq!(page.contains("load test"), is_active, "{page}");
    }
    drop(server);
}

#[test]
fn banner_states_suspensions_and_offers_an_extension_near_the_end() {
    let (_server, root, mut browser) = with_policy(&[]);
    root.add_user("vera", &[("shop", "viewer")]);
    let suspend = |seconds: u32| {
        let body = json!({ "scope": "policy:search", "enforcement": "shadow", "for_seconds": seconds });
        let created = root.send("POST", "/namespaces/default/suspensions", &[], &body);
        created.json()["id"].as_str().unwrap().to_owned()
    };
    suspend(3_000);
    let page = browser.get("/e/default/apps").body;
    assert!(page.contains("Suspended: policy search."), "{page}");
    let id = suspend(500);
    let extend = format!("/e/default/suspended/{id}/extend");
    let page = browser.get("/e/default/apps").body;
    assert!(page.contains(&extend), "{page}");
    let viewer = Browser::signed_in(&_server, "vera");
    let page = viewer.get("/e/default/apps").body;
    assert!(
        page.contains("Suspended: policy search.") && !page.contains(&extend),
        "{page}"
    );
    assert_eq!(browser.post(&extend, &[]).status, 303);
    assert!(!browser.get("/e/default/apps").body.contains(&extend));
}

#[test]
fn revisions_are_compared_from_the_timeline() {
    let (_server, root, browser) = with_policy(&[]);
    root.put_policy("search", 1, &policy("search", 6, "shop"));
    root.put_policy("search", 2, &policy("search", 7, "shop"));
    let changes = browser.get("/e/default/changes").body;
    assert!(changes.contains(&format!("{SEARCH}/history/2")), "{changes}");
    let page = browser.get(&format!("{SEARCH}/history/2?with=1")).body;
    assert!(
        page.contains("-capacity = 5") && page.contains("+capacity = 6"),
        "{page}"
    );
    let page = browser.get(&format!("{SEARCH}/history/2")).body;
    assert!(page.contains("-capacity = 7"), "compared with the newest: {page}");
    assert_eq!(browser.get(&format!("{SEARCH}/history/2?with=9")).status, 404);
}
