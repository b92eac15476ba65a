//! The pages of roles, tokens and users.

use crate::support::admin::{AdminClient, Credentials, PASSWORD, policy, with_sqlite};
use crate::support::browser::Browser;

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
    assert_eq!(export.lines().count(), 3, "{export}");
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
