//! Lists of the admin API in pages, and conditional requests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::admin::{AdminClient, policy, policy_of_all, with_sqlite};
use support::http::Response;
use support::server::wait_until;

const NAMESPACE: &str = "/namespaces/default";

/// Reads a list in pages of two entries: the entries, and the number of pages.
fn read_pages(root: &AdminClient, path: &str, list: &str) -> (Vec<Value>, usize) {
    let (mut entries, mut pages, mut after) = (Vec::new(), 0, String::new());
    loop {
        let answer = root.get(&format!("{path}?limit=2{after}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let page = answer.json();
        let found = page[list].as_array().unwrap();
        assert!(found.len() <= 2, "{page}");
        entries.extend(found.iter().cloned());
        pages += 1;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return (entries, pages),
        }
    }
}

#[test]
fn every_list_is_read_in_pages() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let send = |method: &str, path: &str, body: &Value| {
        let answer = root.send(method, &format!("{NAMESPACE}{path}"), &[], body);
        assert!(answer.status < 300, "{path}: {}", answer.body);
        answer
    };
    for number in 0..5 {
        let name = format!("p{number}");
        assert_eq!(root.put_policy(&name, 0, &policy(&name, 1, "shop")).status, 200);
        send("PUT", &format!("/apps/app{number}"), &json!({}));
        let token = json!({ "name": name, "scopes": ["check:*"] });
        send("POST", "/tokens", &token);
        let block = json!({ "key": name, "app": "shop" });
        send("POST", "/blocks", &block);
        let scope = format!("policy:{name}");
        let suspension = json!({ "scope": scope, "enforcement": "off", "for_seconds": 60 });
        send("POST", "/suspensions", &suspension);
        send(
            "PUT",
            &format!("/grants/user/user{number}/shop"),
            &json!({ "role": "viewer" }),
        );
        if number > 0 {
            let user = json!({ "name": format!("user{number}") });
            assert_eq!(root.send("POST", "/users", &[], &user).status, 201);
        }
    }
    for (path, list) in [
        ("/users", "users"),
        (&format!("{NAMESPACE}/policies"), "policies"),
        (&format!("{NAMESPACE}/apps"), "apps"),
        (&format!("{NAMESPACE}/tokens"), "tokens"),
        (&format!("{NAMESPACE}/grants"), "grants"),
        (&format!("{NAMESPACE}/blocks"), "blocks"),
        (&format!("{NAMESPACE}/suspensions"), "suspensions"),
    ] {
        let (entries, pages) = read_pages(&root, path, list);
        let all = root.get(path).json();
        assert_eq!(json!(entries), all[list], "{path}");
        assert_eq!(all["next"], Value::Null, "{path}");
        assert!(entries.len() >= 5, "{path}: {entries:?}");
        assert_eq!(pages, entries.len().div_ceil(2), "{path}");
        let unknown = root.get(&format!("{path}?after=zzz-unknown"));
        assert!(matches!(unknown.status, 200 | 400), "{}", unknown.body);
        assert_eq!(root.get(&format!("{path}?limit=many")).status, 400, "{path}");
    }
    // The pages of the UI show whole lists.
    let page = root.page("/e/default/tokens").body;
    assert!(
        (0..5).all(|number| page.contains(&format!("p{number}"))),
        "{page}"
    );
}

#[test]
fn proposals_are_read_in_pages() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy("search", 5, "shop")).status,
        200
    );
    let bounds = json!({ "bounds": { "max_capacity": 9 } });
    let set = root.send("PUT", &format!("{NAMESPACE}/apps/shop"), &[], &bounds);
    assert_eq!(set.status, 204, "{}", set.body);
    let editor = root.add_user("eve", &[("shop", "editor")]);
    for capacity in [20, 30, 40] {
        let proposed = editor.put_policy("search", 1, &policy("search", capacity, "shop"));
        assert_eq!(proposed.status, 202, "{}", proposed.body);
    }
    let path = format!("{NAMESPACE}/proposals");
    let (entries, pages) = read_pages(&root, &path, "proposals");
    assert_eq!((entries.len(), pages), (3, 2), "{entries:?}");
    assert_eq!(json!(entries), root.get(&path).json()["proposals"]);
}

fn tag_of(answer: &Response) -> String {
    answer
        .header("etag")
        .unwrap_or_else(|| panic!("{answer:?}"))
        .to_owned()
}

#[test]
fn unchanged_answer_is_not_sent_again() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    let path = format!("{NAMESPACE}/policies/search");
    wait_until(|| root.get(&path).json()["state"] == "published", || server.log());
    for path in [
        path.as_str(),
        &format!("{NAMESPACE}/policies"),
        &format!("{NAMESPACE}/rules"),
        &format!("{NAMESPACE}/grants"),
        "/users",
    ] {
        let tag = tag_of(&root.get(path));
        let send = |known: &str| root.send("GET", path, &[("if-none-match", known)], &Value::Null);
        for known in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}")] {
            let same = send(&known);
            assert_eq!((same.status, same.body.as_str()), (304, ""), "{path}");
            assert_eq!(tag_of(&same), tag, "{path}");
        }
        let changed = send("\"other\"");
        assert_eq!(changed.status, 200, "{path}");
    }
    // The tag is the condition of the next change, and a change has another tag.
    let tag = tag_of(&root.get(&path));
    let body = json!({ "toml": policy_of_all("search", 2) });
    let saved = root.send("PUT", &path, &[("if-match", &tag)], &body);
    assert_eq!(saved.status, 200, "{}", saved.body);
    let known = [("if-none-match", tag.as_str())];
    let changed = root.send("GET", &path, &known, &Value::Null);
    assert_eq!(changed.status, 200);
    assert_ne!(tag_of(&changed), tag);
    let stale = root.send("PUT", &path, &[("if-match", &tag)], &body);
    assert_eq!(stale.status, 409, "{}", stale.body);
    // The answer to another caller is decided before it is compared.
    let anonymous = AdminClient::new(server.admin(), support::admin::Credentials::None);
    let refused = anonymous.send("GET", &path, &known, &Value::Null);
    assert_eq!(refused.status, 401, "{}", refused.body);
}

/// Each route that reads a body documents it, and every reference exists.
#[test]
fn bodies_and_parameters_are_documented() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let text = root.get("/openapi.json").body;
    let document: Value = serde_json::from_str(&text).unwrap();
    let references: Vec<&str> = text
        .split(r##""$ref":"#"##)
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(references.len() > 25, "{references:?}");
    for pointer in &references {
        let schema = document.pointer(pointer).unwrap_or_else(|| panic!("{pointer}"));
        assert!(schema.is_object(), "{pointer}");
    }
    // A route without a documented body does not read one: it accepts a request without a type.
    let mut with_body = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let method = method.to_uppercase();
            // These would end the session of the test.
            if path.ends_with("/session") || method == "GET" {
                continue;
            }
            let route = path
                .strip_prefix("/admin/v1")
                .unwrap()
                .replace("{namespace}", "default")
                .replace(['{', '}'], "");
            let headers = [("content-type", "text/plain"), ("if-match", "1")];
            let answer = root.send_text(&method, &route, &headers, "text");
            let has_body = operation.get("requestBody").is_some();
            assert_eq!(answer.status == 415, has_body, "{method} {path}: {}", answer.body);
            assert_eq!(
                answer.body.contains("is `text/plain`"),
                has_body,
                "{}",
                answer.body
            );
            with_body += usize::from(has_body);
        }
    }
    assert!(with_body >= 25, "{with_body}");
    let schema = &document["components"]["schemas"]["TokenBody"];
    assert_eq!(schema["required"], json!(["name", "scopes"]), "{schema}");
    for (path, names) in [
        ("/policies", "after limit app q brief"),
        ("/policies/{name}/history", "before limit at"),
        ("/rules/history", "before limit at"),
        ("/audit", "before limit object actor users app changes"),
    ] {
        let path = format!("/admin/v1/namespaces/{{namespace}}{path}");
        let names: BTreeSet<&str> = names.split(' ').collect();
        assert_eq!(
            query_parameters(&document["paths"][&path]["get"]),
            names,
            "{path}"
        );
    }
}

/// The names of the parameters of a query in the description of an operation.
fn query_parameters(operation: &Value) -> BTreeSet<&str> {
    let parameters = operation["parameters"].as_array().unwrap();
    let of_query = parameters.iter().filter(|of| of["in"] == "query");
    of_query.map(|of| of["name"].as_str().unwrap()).collect()
}

/// A route that reads a number documents it: it does not accept another text.
#[test]
fn numbers_in_queries_are_documented() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(root.put_policy("name", 0, &policy("name", 1, "shop")).status, 200);
    let document = root.get("/openapi.json").json();
    let mut read = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let Some(operation) = operations.get("get") else {
            continue;
        };
        let documented = query_parameters(operation);
        let route = path
            .strip_prefix("/admin/v1")
            .unwrap()
            .replace("{namespace}", "default")
            .replace("{number}", "1")
            .replace(['{', '}'], "");
        for name in ["before", "limit", "at", "from", "to"] {
            let answer = root.get(&format!("{route}?{name}=text"));
            let is_read = answer.status == 400 && answer.body.contains("invalid digit");
            assert_eq!(
                is_read,
                documented.contains(name),
                "{path}: {name}: {}",
                answer.body
            );
            read += usize::from(is_read);
        }
    }
    assert!(read >= 20, "{read}");
}

#[test]
fn histories_answer_the_revision_of_a_time() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy("search", 1, "shop")).status,
        200
    );
    assert_eq!(
        root.put_policy("search", 1, &policy("search", 2, "shop")).status,
        200
    );
    for (condition, entry) in [
        (("if-none-match", "*"), "customer"),
        (("if-match", "1"), "address"),
    ] {
        let body = json!({ "toml": format!("[[rule]]\nmatch = ['{entry}']\npolicy = 'search'\n") });
        let saved = root.send("PUT", &format!("{NAMESPACE}/rules"), &[condition], &body);
        assert_eq!(saved.status, 200, "{}", saved.body);
    }
    for document in ["policies/search", "rules"] {
        let path = format!("{NAMESPACE}/{document}/history");
        let read = |path: &str| {
            let mut list = root.get(path).json();
            for revision in list["revisions"].as_array_mut().unwrap() {
                // The publication changes the state between two reads.
                revision.as_object_mut().unwrap().remove("state");
            }
            list
        };
        let list = read(&path);
        let revisions = list["revisions"].as_array().unwrap();
        assert_eq!(revisions.len(), 2, "{list}");
        let oldest = revisions[1]["created_at"].as_i64().unwrap();
        for (at, expected) in [
            (oldest - 1, None),
            (oldest, revisions.get(1)),
            (i64::MAX, revisions.first()),
        ] {
            let found = read(&format!("{path}?at={at}"));
            let expected = json!({ "revisions": Vec::from_iter(expected), "next": null });
            assert_eq!(found, expected, "{document} at {at}");
        }
    }
    // A viewer of another app does not see the existence of the policy.
    let stranger = root.add_user("nora", &[("bank", "viewer")]);
    let hidden = stranger.get(&format!("{NAMESPACE}/policies/search/history?at={}", i64::MAX));
    assert_eq!(hidden.status, 404, "{}", hidden.body);
}

/// A misspelled end would otherwise be no end.
#[test]
fn misspelled_fields_of_bodies_are_rejected() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(root.put_policy("p", 0, &policy("p", 5, "shop")).status, 200);
    let bodies = [
        ("POST", "/blocks", json!({ "key": "ann", "app": "shop" })),
        (
            "POST",
            "/suspensions",
            json!({ "scope": "policy:p", "enforcement": "off", "for_seconds": 60 }),
        ),
        (
            "POST",
            "/policies/p/quotas",
            json!({ "key": "ann", "capacity": 7, "rate": "1/s", "for_seconds": 60 }),
        ),
        (
            "PUT",
            "/policies/p/trial",
            json!({ "capacity": 3, "rate": "1/s", "for_seconds": 60 }),
        ),
    ];
    for (method, path, body) in bodies {
        let mut misspelled = body.clone();
        misspelled["untill"] = json!(1);
        let path = format!("{NAMESPACE}{path}");
        // Changes of the policy need its revision.
        let revision = root.get(&format!("{NAMESPACE}/policies/p")).json()["revision"].to_string();
        let current = [("if-match", revision.as_str())];
        let answer = root.send(method, &path, &current, &misspelled);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(
            answer.body.contains("unknown field `untill`"),
            "{path}: {}",
            answer.body
        );
        let answer = root.send(method, &path, &current, &body);
        assert!(answer.status < 300, "{path}: {}", answer.body);
    }
}

/// The hours of the 13 months that are kept fit one answer, and their minutes do not.
#[test]
fn usage_of_the_kept_hours_is_one_answer() {
    const DAY: i64 = 86_400_000_000;
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy("search", 1, "shop")).status,
        200
    );
    let usage = |days: i64, more: &str| {
        let path = format!("{NAMESPACE}/policies/search/usage?from=0&to={}{more}", DAY * days);
        root.get(&path)
    };
    for (days, more, span) in [
        (2, "", "minute"),
        (3, "", "hour"),
        (396, "", "hour"),
        (8, "&span=minute", "minute"),
    ] {
        let answer = usage(days, more);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.json()["span"], span, "{days} days");
    }
    for (days, more) in [(9, "&span=minute"), (501, "")] {
        let answer = usage(days, more);
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains("too many points"), "{}", answer.body);
    }
}
