//! The pages of roles, tokens and users.

use limiter_server::store::Store;
use serde_json::{Value, json};

use crate::support::admin::{
    AdminClient, Credentials, PASSWORD, policy, with_database, with_sign_in_proxy, with_sqlite,
};
use crate::support::browser::Browser;
use crate::support::http::Response;
use crate::support::server::{Directory, Server};

#[test]
fn owner_grants_roles_up_to_the_own_one() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    root.add_user("olga", &[("shop", "owner")]);
    root.add_user("vera", &[]);
    let people = "/e/default/apps/shop/people";
    let vera = Browser::signed_in(&server, "vera");
    assert_eq!(vera.get(people).status, 404);
    let mut owner = Browser::signed_in(&server, "olga");
    let page = owner.get(people).body;
    assert!(
        page.contains("<option>owner</option>") && !page.contains("<option>admin</option>"),
        "{page}"
    );
    let fields = [("kind", "user"), ("subject", "vera"), ("role", "viewer")];
    assert_eq!(owner.post(people, &fields).status, 303);
    assert_eq!(vera.get("/e/default/policies/search").status, 200);
    assert!(!vera.get(people).body.contains("Grant a role"));
    let fields = [("kind", "user"), ("subject", "vera"), ("role", "admin")];
    assert_eq!(owner.post(people, &fields).status, 403);
    let bounds = [
        ("min_capacity", ""),
        ("max_capacity", "10"),
        ("min_rate", ""),
        ("max_rate", "5/s"),
    ];
    assert_eq!(owner.post("/e/default/apps/shop/bounds", &bounds).status, 303);
    assert!(owner.get(people).body.contains("value=\"5/s\""));
    let fields = [("kind", "user"), ("subject", "vera")];
    assert_eq!(owner.post(&format!("{people}/remove"), &fields).status, 303);
    assert_eq!(vera.get("/e/default/policies/search").status, 404);
    let changes = owner.get("/e/default/apps/shop/changes").body;
    assert!(
        changes.contains("granted a role to") && changes.contains("vera"),
        "{changes}"
    );
}

/// The requests of a user of a trusted proxy, by the headers that it adds.
fn send_by_proxy(
    server: &Server,
    (user, groups): (&str, &str),
    (method, path): (&str, &str),
    body: &str,
) -> Response {
    let headers = [
        ("x-forwarded-user", user),
        ("x-forwarded-groups", groups),
        ("sec-fetch-site", "same-origin"),
    ];
    Browser::new(server.admin()).send(method, path, &headers, body)
}

#[test]
fn roles_of_groups_are_granted_changed_and_removed() {
    let server = with_sign_in_proxy("127.0.0.1");
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let (ann, bob) = (("ann", "staff, shop-team"), ("bob", "staff"));
    let (policy, people) = ("/e/default/policies/search", "/e/default/apps/shop/people");
    let status = |user, path| send_by_proxy(&server, user, ("GET", path), "").status;
    assert_eq!((status(ann, policy), status(bob, policy)), (404, 404));
    let mut browser = Browser::signed_in(&server, "root");
    assert!(
        browser
            .get(people)
            .body
            .contains("<option value=\"group\">group</option>")
    );
    // The rows of a group: its role, and the app.
    let rows = |group: &str| {
        let page = Browser::signed_in(&server, "root").get(people).body;
        let start = format!("<th scope=\"row\">{group} <span class=\"muted\">group</span></th><td>");
        let rows = page.split(&start).skip(1);
        let cells = rows.map(|row| row.splitn(3, "</td>").take(2).collect::<Vec<_>>().join(""));
        cells
            .map(|cells| cells.replace("<td>", " in "))
            .collect::<Vec<_>>()
    };
    let mut grant = |page: &str, role: &str| {
        let fields = [("kind", "group"), ("subject", "shop-team"), ("role", role)];
        let granted = browser.post(page, &fields);
        assert_eq!(granted.status, 303, "{}", granted.body);
    };
    grant(people, "viewer");
    assert_eq!(rows("shop-team"), ["viewer in shop"]);
    let edit = format!("{policy}/edit");
    assert_eq!((status(ann, policy), status(ann, &edit)), (200, 403));
    // Users outside of the group have no role, and neither has a user with the name of the group.
    assert_eq!(
        (status(bob, policy), status(("shop-team", "staff"), policy)),
        (404, 404)
    );
    // A second grant replaces the role.
    grant(people, "editor");
    assert_eq!(rows("shop-team"), ["editor in shop"]);
    assert_eq!(status(ann, &edit), 200);
    // A role in all apps is shown beside the one of the app.
    grant("/e/default/apps/*/people", "viewer");
    assert_eq!(rows("shop-team"), ["editor in shop", "viewer in all apps"]);
    let fields = "kind=group&subject=staff&role=viewer";
    let by_ann = || send_by_proxy(&server, ann, ("POST", people), fields).status;
    assert_eq!(by_ann(), 403, "an editor grants nothing");
    // A member of a group with the role owner grants roles to another group.
    grant(people, "owner");
    assert!(
        send_by_proxy(&server, ann, ("GET", people), "")
            .body
            .contains("Grant a role")
    );
    assert_eq!(by_ann(), 303);
    assert_eq!(rows("staff"), ["viewer in shop"]);
    assert_eq!(status(bob, policy), 200);
    let page = browser.get(people).body;
    let (_, form) = page.split_once("name=\"subject\" value=\"staff\"").unwrap();
    assert!(form.contains("staff has the role viewer in shop."), "{page}");
    let removed = [("kind", "group"), ("subject", "staff")];
    assert_eq!(browser.post(&format!("{people}/remove"), &removed).status, 303);
    assert_eq!(rows("staff"), [""; 0]);
    assert_eq!((status(bob, policy), status(ann, policy)), (404, 200));
    let changes = browser.get("/e/default/apps/shop/changes").body;
    for expected in ["granted a role to", "shop-team", "staff", "ann"] {
        assert!(changes.contains(expected), "{expected}: {changes}");
    }
}

#[test]
fn token_is_shown_once_rotated_and_revoked() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    root.add_user("olga", &[("shop", "owner")]);
    let owner = Browser::signed_in(&server, "olga");
    assert!(!owner.get("/e/default/apps/shop").body.contains("/tokens"));
    assert_eq!(owner.get("/e/default/tokens").status, 403);
    let mut browser = Browser::signed_in(&server, "root");
    let fields = [("name", "ci"), ("scopes", "admin:viewer:shop"), ("days", "30")];
    let created = browser.post("/e/default/tokens", &fields);
    let secret_of = |page: &str| {
        let (_, rest) = page.split_once("lim_").unwrap_or_else(|| panic!("{page}"));
        format!("lim_{}", rest.split('<').next().unwrap_or_default())
    };
    let secret = secret_of(&created.body);
    let works = |secret: &str| {
        let token = AdminClient::new(server.admin(), Credentials::Token(secret.to_owned()));
        token.get("/namespaces/default/policies/search").status == 200
    };
    assert!(works(&secret));
    for page in ["/e/default/tokens", "/e/default/apps/shop/tokens"] {
        let page = browser.get(page).body;
        assert!(page.contains("ci") && !page.contains(&secret), "{page}");
    }
    let list = root.get("/namespaces/default/tokens").json();
    let id = list["tokens"][0]["id"].as_str().unwrap().to_owned();
    let rotated = browser.post(&format!("/e/default/tokens/{id}/rotate"), &[("overlap", "0")]);
    let second = secret_of(&rotated.body);
    assert!(works(&second) && !works(&secret));
    let list = root.get("/namespaces/default/tokens").json();
    let ids = list["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token["id"].as_str().unwrap());
    let new = ids.clone().find(|of| *of != id).unwrap();
    assert_eq!(
        browser
            .post(&format!("/e/default/tokens/{new}/revoke"), &[])
            .status,
        303
    );
    assert!(!works(&second));
}

/// Every change of an editor would exceed one of both bounds.
#[test]
fn bounds_without_a_value_between_them_are_rejected() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let put = |bounds: Value| {
        let path = "/namespaces/default/apps/shop";
        root.send("PUT", path, &[], &json!({ "bounds": bounds }))
    };
    for (bounds, expected) in [
        (
            json!({ "min_capacity": 6, "max_capacity": 5 }),
            "min_capacity is 6",
        ),
        (
            json!({ "min_rate": "61/min", "max_rate": "1/s" }),
            "min_rate is 61/min",
        ),
    ] {
        let refused = put(bounds);
        assert!(
            refused.status == 422 && refused.body.contains(expected),
            "{}: {}",
            refused.status,
            refused.body
        );
    }
    let equal = json!({ "min_capacity": 5, "max_capacity": 5, "min_rate": "60/min", "max_rate": "1/s" });
    assert_eq!(put(equal).status, 204);
}

#[test]
fn settings_are_for_administrators() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.add_user("olga", &[("*", "admin")]);
    let mut owner = Browser::signed_in(&server, "olga");
    assert_eq!(owner.get("/settings").status, 403);
    let fields = [("name", "eve"), ("password", PASSWORD)];
    assert_eq!(owner.post("/settings/users", &fields).status, 403);
    let mut browser = Browser::signed_in(&server, "root");
    assert_eq!(browser.post("/settings/users", &fields).status, 303);
    let eve = Browser::signed_in(&server, "eve");
    assert_eq!(eve.get("/account").status, 200);
    assert_eq!(
        browser.post("/settings/users/eve", &[("disabled", "1")]).status,
        303
    );
    assert_eq!(eve.get("/account").status, 303, "the session ended");
    assert_eq!(browser.post("/settings/users/eve/remove", &[]).status, 303);
    let last = browser.post("/settings/users/root/remove", &[]);
    assert_eq!(last.status, 409, "{}", last.body);
    let fields = [("label", "PRODUCTION"), ("colour", "red")];
    assert_eq!(
        browser.post("/settings/environments/default", &fields).status,
        303
    );
    let page = browser.get("/e/default/apps").body;
    assert!(page.contains("PRODUCTION") && page.contains("env-red"), "{page}");
    let settings = browser.get("/settings").body;
    for kept in ["<dd>48 hours</dd>", "<dd>396 days</dd>", "<dd>30 days</dd>"] {
        assert!(settings.contains(kept), "{settings}");
    }
}

#[test]
fn changes_of_users_are_shown_to_administrators_of_the_server() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.add_user("olga", &[("*", "admin")]);
    let mut browser = Browser::signed_in(&server, "root");
    assert_eq!(
        browser
            .post("/settings/users", &[("name", "eve"), ("password", PASSWORD)])
            .status,
        303
    );
    let changed = browser.post("/settings/users/eve", &[("admin", "1"), ("disabled", "1")]);
    assert_eq!(changed.status, 303);
    assert_eq!(browser.post("/settings/users/eve/remove", &[]).status, 303);
    let page = browser.get("/e/default/changes").body;
    for expected in [
        "created the user",
        "changed the user",
        "administrator, disabled",
        "removed the user",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert!(!page.contains("signin"), "{page}");
    let export = browser.get("/e/default/changes/export?object=eve").body;
    assert_eq!(entries_of(&export), 3, "{export}");
    // An administrator of the environment sees its changes only.
    let olga = Browser::signed_in(&server, "olga");
    let page = olga.get("/e/default/changes").body;
    assert!(
        page.contains("granted a role to") && !page.contains("eve"),
        "{page}"
    );
    let client = root.sign_in("olga");
    assert_eq!(client.get("/namespaces/default/audit?users=true").status, 403);
}

#[test]
fn password_needs_the_current_one() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.add_user("vera", &[]);
    let mut browser = Browser::signed_in(&server, "vera");
    let change = |current: &'static str, repeated: &'static str| {
        [
            ("current", current),
            ("password", "another long password"),
            ("repeated", repeated),
        ]
    };
    let wrong = browser.post(
        "/account/password",
        &change("wrong password", "another long password"),
    );
    assert_eq!(wrong.status, 403);
    assert_eq!(
        browser
            .post("/account/password", &change(PASSWORD, "different"))
            .status,
        400
    );
    let changed = browser.post("/account/password", &change(PASSWORD, "another long password"));
    assert_eq!(changed.status, 303, "{}", changed.body);
    assert_eq!(browser.get("/account").status, 303, "the session ended");
}

#[test]
fn export_of_changes_has_no_largest_size() {
    // A page of the API has at most 1,000.
    const ENTRIES: usize = 10_001;
    let directory = Directory::new();
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = Store::open(&url).await.expect("a store");
        for (at, _) in (1..).zip(0..ENTRIES) {
            let recorded = store.record("default", "ann", "read-keys", "policy/search", at);
            recorded.await.expect("recorded");
        }
    });
    let server = with_database(directory, &url, &[]);
    AdminClient::set_up(&server);
    let browser = Browser::signed_in(&server, "root");
    let export = browser.get("/e/default/changes/export?actor=ann").body;
    assert_eq!(entries_of(&export), ENTRIES);
}

/// The entries of an export, which arrives in chunks with lines of their sizes.
fn entries_of(export: &str) -> usize {
    export.lines().filter(|line| line.starts_with('{')).count()
}
