//! The first run.

use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy, setup_token, with_sqlite};
use crate::support::browser::Browser;

const YAML: &str = "domain: edge\ndescriptors:\n  - key: route\n    value: login\n    rate_limit:\n      \
                    unit: minute\n      requests_per_unit: 5\n";

#[test]
fn first_run_leads_to_the_example() {
    let server = with_sqlite(&[]);
    let mut browser = Browser::new(server.admin());
    let token = setup_token(&server);
    let fields = [
        ("token", token.as_str()),
        ("user", "root"),
        ("password", crate::support::admin::PASSWORD),
        ("repeated", crate::support::admin::PASSWORD),
    ];
    let created = browser.post("/setup", &fields);
    assert_eq!(
        created.header("location"),
        Some("/setup/start"),
        "{}",
        created.body
    );
    let start = browser.get("/setup/start").body;
    assert!(start.contains("Create the example app"), "{start}");
    let look = [("label", "Staging"), ("colour", "green")];
    assert_eq!(browser.post("/setup/environment", &look).status, 303);
    assert!(browser.get("/setup/start").body.contains("Staging"));
    let example = browser.post("/setup/example", &[]);
    assert_eq!(
        example.header("location"),
        Some("/e/default/apps/example/connect"),
        "{}",
        example.body
    );
    let page = browser.get("/e/default/policies/example").body;
    let sentence = "Each key may make 7 requests an hour, with bursts of 7.";
    assert!(page.contains(sentence), "{page}");
    assert!(
        !browser
            .get("/setup/start")
            .body
            .contains("Create the example app")
    );
    assert_eq!(browser.post("/setup/example", &[]).status, 409);
}

#[test]
fn import_shows_its_changes_before_it_saves_them() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("other", 0, &policy("other", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    let wrong = browser.post("/setup/import", &[("yaml", "descriptors: 5")]);
    assert_eq!(wrong.status, 422, "{}", wrong.body);
    assert!(wrong.body.contains("descriptors: 5"), "the text is not lost");
    let preview = browser.post("/setup/import", &[("yaml", YAML)]);
    assert_eq!(preview.status, 200, "{}", preview.body);
    assert!(
        preview.body.contains("5 requests in each minute"),
        "{}",
        preview.body
    );
    assert!(preview.body.contains("+match ="), "{}", preview.body);
    let policies = || root.get("/namespaces/default/policies").json()["policies"].clone();
    assert_eq!(
        policies().as_array().map(Vec::len),
        Some(1),
        "a preview saves nothing"
    );
    for _ in 0..2 {
        let saved = browser.post("/setup/import/save", &[("yaml", YAML)]);
        assert_eq!(saved.status, 303, "{}", saved.body);
    }
    assert_eq!(policies().as_array().map(Vec::len), Some(2));
    let rules = root.get("/namespaces/default/rules").json();
    assert_eq!(rules["revision"], json!(1), "a repeated import changes nothing");
    assert!(
        rules["toml"]
            .as_str()
            .is_some_and(|text| text.contains("route=login")),
        "{rules}"
    );
}

/// Each configuration is that of one domain, and users import several.
#[test]
fn configurations_of_two_domains_are_imported() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let mut browser = Browser::signed_in(&server, "root");
    let mail = YAML.replace("domain: edge", "domain: mail");
    for yaml in [YAML, &mail, YAML, &mail] {
        let saved = browser.post("/setup/import/save", &[("yaml", yaml)]);
        assert_eq!(saved.status, 303, "{}", saved.body);
    }
    let rules = root.get("/namespaces/default/rules").json();
    let toml = rules["toml"].as_str().unwrap_or_default();
    assert!(
        toml.contains("domain = \"edge\"") && toml.contains("domain = \"mail\""),
        "{toml}"
    );
    assert_eq!(toml.matches("[[rule]]").count(), 2, "{toml}");
    assert_eq!(rules["revision"], json!(2), "a repeated import changes nothing");
}

/// Another user saves a policy of the configuration between the preview and the save.
#[test]
fn import_of_an_older_preview_is_not_saved() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let yaml = YAML.replace("rate_limit:\n", "rate_limit:\n      name: login\n");
    let mut browser = Browser::signed_in(&server, "root");
    let mut preview = || {
        let page = browser.post("/setup/import", &[("yaml", &yaml)]).body;
        let (_, basis) = page
            .split_once("name=\"basis\" value=\"")
            .unwrap_or_else(|| panic!("{page}"));
        basis.split('"').next().unwrap().to_owned()
    };
    let older = preview();
    assert_eq!(
        root.put_policy("login", 0, &policy("login", 9, "shop")).status,
        200
    );
    let newer = preview();
    let mut save = |basis: &str| browser.post("/setup/import/save", &[("yaml", &yaml), ("basis", basis)]);
    let refused = save(&older);
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert!(
        refused.body.contains("preview the import again"),
        "{}",
        refused.body
    );
    let saved = || root.get("/namespaces/default/policies/login").json();
    assert_eq!(saved()["revision"], json!(1));
    assert_eq!(save(&newer).status, 303);
    assert_eq!(saved()["revision"], json!(2));
}

/// The import is one transaction: a policy of a repository prevents all of it.
#[test]
fn import_saves_everything_or_nothing() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let text = |name: &str| json!({ "name": name, "toml": policy(name, 5, "shop") });
    let import = |body: Value| root.send("POST", "/namespaces/default/import", &[], &body);
    let created = import(json!({ "policies": [text("search"), text("mail")] }));
    assert_eq!(created.status, 200, "{}", created.body);
    assert_eq!(created.json()["saved"], json!(2));
    let wrong = json!({ "name": "wrong", "toml": "[policy.wrong]\n" });
    let refused = import(json!({ "policies": [text("search"), text("new"), wrong] }));
    assert_eq!(refused.status, 409, "{}", refused.body);
    let names = refused.json()["errors"].clone();
    let names: Vec<&str> = names
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|of| of["name"].as_str())
        .collect();
    assert_eq!(names, ["search", "wrong"], "{}", refused.body);
    let policies = root.get("/namespaces/default/policies").json()["policies"].clone();
    assert_eq!(
        policies.as_array().map(Vec::len),
        Some(2),
        "nothing else was saved"
    );
}

#[test]
fn first_run_is_for_administrators() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.add_user("olga", &[("*", "admin")]);
    let mut browser = Browser::signed_in(&server, "olga");
    assert_eq!(browser.get("/setup/start").status, 403);
    assert_eq!(browser.post("/setup/example", &[]).status, 403);
    assert_eq!(
        root.get("/namespaces/default/policies").json()["policies"],
        Value::Array(Vec::new())
    );
}
