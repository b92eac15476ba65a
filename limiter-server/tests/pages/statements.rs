//! Statements of pages: the state before a suspension, proposals that a change closes, the tester
//! of rules, filters of changes, and the author in an explanation.

use serde_json::json;

use super::edit::{SEARCH, bucket};
use super::truth::with_policy;
use crate::support::admin::{AdminClient, policy, policy_of_all, with_sqlite};
use crate::support::browser::Browser;

/// The part of a page between two texts.
fn part<'a>(page: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = page
        .split_once(start)
        .unwrap_or_else(|| panic!("no {start}: {page}"));
    rest.split(end).next().unwrap_or_default()
}

#[test]
fn confirmation_of_a_suspension_states_the_policies_before_it() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    root.put_policy(
        "login",
        0,
        &(policy("login", 5, "shop") + "enforcement = 'shadow'\n"),
    );
    root.put_policy("mail", 0, &policy("mail", 5, "office"));
    root.put_policy("all", 0, &(policy_of_all("all", 5) + "enforcement = 'off'\n"));
    let before = |scope: &str| {
        let path = format!("/e/default/suspended/confirm?scope={scope}&enforcement=off&hours=1");
        let page = browser.get(&path);
        assert_eq!(page.status, 200, "{}", page.body);
        part(&page.body, "<h3>Before</h3>", "</div>").to_owned()
    };
    let of_policy = before("policy:search");
    for expected in [
        "Each key may make 1 request an hour, with bursts of 5.",
        "<span class=\"state ok\">Enforced</span>",
    ] {
        assert!(of_policy.contains(expected), "{expected}: {of_policy}");
    }
    // A policy of all apps decides calls of each app.
    let of_app = before("app:shop");
    let expected = "3 policies decide their calls: 1 enforced, 1 in shadow mode, 1 off.";
    assert!(of_app.contains(expected), "{of_app}");
    let of_all = before("all");
    let expected = "4 policies decide their calls: 2 enforced, 1 in shadow mode, 1 off.";
    assert!(of_all.contains(expected), "{of_all}");
    let body = json!({ "scope": "policy:search", "enforcement": "deny", "for_seconds": 600 });
    root.send("POST", "/namespaces/default/suspensions", &[], &body);
    let of_all = before("all");
    let expected = "4 policies decide their calls: 1 enforced, 1 in shadow mode, 1 off, 1 suspended.";
    assert!(of_all.contains(expected), "{of_all}");
    assert!(before("policy:search").contains("<span class=\"state bad\">Suspended</span>"));
}

#[test]
fn forms_and_states_have_their_words() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let body = json!({ "name": "ci", "scopes": ["check:*"], "expires_in_days": 9 });
    root.send("POST", "/namespaces/default/tokens", &[], &body);
    for (path, expected) in [
        ("/e/default/customers?key=acme", "<h2>Block the key</h2>"),
        ("/e/default/apps/shop/connect", "<h2>Create a token</h2>"),
        ("/e/default/tokens", "<span class=\"state ok\">Valid</span>"),
    ] {
        let page = browser.get(path).body;
        assert!(page.contains(expected), "{path}: {page}");
    }
}

#[test]
fn forms_state_the_proposals_that_they_close() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let bounds = json!({ "bounds": { "max_capacity": 10 } });
    root.send("PUT", "/namespaces/default/apps/shop", &[], &bounds);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let eve = root.add_user("eve", &[("shop", "editor")]);
    let mut browser = Browser::signed_in(&server, "root");
    let one = "1 open proposal can no longer be approved and has to be made again.";
    let two = "2 open proposals can no longer be approved and have to be made again.";
    let mut forms = || {
        let policy = browser.get(SEARCH).body;
        let customers = browser.get("/e/default/customers?key=acme").body;
        let preview = browser.post(&format!("{SEARCH}/edit"), &bucket("1", "6")).body;
        let forms = [
            part(&policy, &format!("action=\"{SEARCH}/trial\""), "</form>"),
            part(&policy, &format!("action=\"{SEARCH}/quotas\""), "</form>"),
            part(&customers, "action=\"/e/default/customers/raise\"", "</form>"),
            part(&preview, "id=\"preview\"", "</form>"),
        ];
        forms.map(str::to_owned)
    };
    for form in forms() {
        assert!(!form.contains("open proposal"), "{form}");
    }
    let propose = |capacity| {
        let proposed = eve.put_policy("search", 1, &policy("search", capacity, "shop"));
        assert_eq!(proposed.status, 202, "{}", proposed.body);
    };
    for (capacity, expected) in [(50, one), (60, two)] {
        propose(capacity);
        for form in forms() {
            let after = part(&form, "<h3>After", "<p class=\"hint\">");
            assert!(after.contains(expected), "{form}");
        }
    }
    // A change closes them, and the next one does not close them again.
    let saved = root.put_policy("search", 1, &policy("search", 7, "shop"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    for form in forms() {
        assert!(!form.contains("open proposal"), "{form}");
    }
}

/// A list of the API has 100 entries by default.
#[test]
fn page_now_lists_all_proposals() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let bounds = json!({ "bounds": { "max_capacity": 10 } });
    root.send("PUT", "/namespaces/default/apps/shop", &[], &bounds);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let eve = root.add_user("eve", &[("shop", "editor")]);
    for capacity in 11..112 {
        let proposed = eve.put_policy("search", 1, &policy("search", capacity, "shop"));
        assert_eq!(proposed.status, 202, "{}", proposed.body);
    }
    let page = Browser::signed_in(&server, "root").get("/e/default/now").body;
    assert_eq!(page.matches(">Proposed</span>").count(), 101);
}

#[test]
fn restores_approvals_deletions_and_imports_state_the_proposals_that_they_close() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let bounds = json!({ "bounds": { "max_capacity": 10 } });
    root.send("PUT", "/namespaces/default/apps/shop", &[], &bounds);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    root.put_policy("search", 1, &policy("search", 6, "shop"));
    let eve = root.add_user("eve", &[("shop", "editor")]);
    let mut browser = Browser::signed_in(&server, "root");
    let propose = |expected, capacity| {
        let proposed = eve.put_policy("search", expected, &policy("search", capacity, "shop"));
        assert_eq!(proposed.status, 202, "{}", proposed.body);
    };
    let yaml = "domain: edge\ndescriptors:\n  - key: route\n    rate_limit:\n      name: search\n      \
                unit: minute\n      requests_per_unit: 5\n";
    let mut changes = || {
        let revision = browser.get(&format!("{SEARCH}/history/1")).body;
        let deletion = browser.get(&format!("{SEARCH}/delete")).body;
        let import = browser.post("/setup/import", &[("yaml", yaml)]).body;
        let forms = [
            part(&revision, &format!("action=\"{SEARCH}/restore\""), "</form>"),
            part(&deletion, &format!("action=\"{SEARCH}/delete\""), "</form>"),
            part(&import, "<section class=\"panel\">", "</section>"),
        ];
        forms.map(str::to_owned)
    };
    let approvals = || {
        let page = Browser::signed_in(&server, "root").get(SEARCH).body;
        let panels = page.split("<h2>Proposed by eve</h2>").skip(1);
        panels
            .map(|panel| panel.split("</section>").next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let note = "can no longer be approved";
    for form in changes() {
        assert!(!form.contains(note), "{form}");
    }
    propose(2, 50);
    for form in changes() {
        let expected = "1 open proposal can no longer be approved and has to be made again.";
        assert!(form.contains(expected), "{form}");
    }
    // The only proposal closes no other one.
    let panels = approvals();
    assert_eq!(panels.len(), 1);
    assert!(
        panels[0].contains("Approve") && !panels[0].contains(note),
        "{panels:?}"
    );
    propose(2, 60);
    propose(2, 70);
    for form in changes() {
        assert!(
            form.contains("3 open proposals can no longer be approved"),
            "{form}"
        );
    }
    let panels = approvals();
    assert_eq!(panels.len(), 3);
    for panel in &panels {
        let after = part(panel, "<h3>After</h3>", "</div>");
        let expected = "2 other open proposals can no longer be approved and have to be made again.";
        assert!(after.contains(expected), "{panel}");
    }
    // An approval closes the two others, and the next one does not.
    let id = part(&panels[0], "/proposals/", "/approve").to_owned();
    let path = format!("/namespaces/default/proposals/{id}/approve");
    let approved = root.send("POST", &path, &[], &json!({}));
    assert_eq!(approved.status, 200, "{}", approved.body);
    propose(3, 80);
    let panels = approvals();
    let open = panels.iter().filter(|panel| panel.contains(">Approve<"));
    assert_eq!((panels.len(), open.count()), (3, 1), "{panels:?}");
    assert!(!panels.iter().any(|panel| panel.contains("other open proposal")));
    for form in changes() {
        assert!(form.contains("1 open proposal can no longer"), "{form}");
    }
    let viewer = root.add_user("vera", &[("shop", "viewer")]);
    let page = viewer.page(SEARCH).body;
    assert!(!page.contains("open proposal"), "{page}");
}

#[test]
fn tester_states_the_rule_of_a_descriptor() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let test = |entries: &str| {
        let path = format!("/e/default/rules?domain=edge&entries={entries}");
        browser.get(&path).body
    };
    let page = test("route%3Dsearch,%20customer%3Dacme");
    let result = part(&page, "<div class=\"panel\" role=\"status\">", "</div>");
    assert!(
        result.contains("There are no rules; the default mapping applies"),
        "{result}"
    );
    let rule = |route: &str, policy: &str| {
        format!("[[rule]]\ndomain = 'edge'\nmatch = ['route={route}', 'customer']\npolicy = '{policy}'\n")
    };
    let rules = rule("login", "search") + &rule("search", "search");
    let saved = root.send(
        "PUT",
        "/namespaces/default/rules",
        &[("if-none-match", "*")],
        &json!({ "toml": rules }),
    );
    assert_eq!(saved.status, 200, "{}", saved.body);
    let result = |entries: &str| {
        let page = test(entries);
        part(&page, "<div class=\"panel\" role=\"status\">", "</div>").to_owned()
    };
    let found = result("route%3Dsearch,%20customer%3Dacme");
    let expected = "Rule 2 matches: policy <strong>search</strong>, key <code>acme</code>";
    assert!(
        found.contains(expected) && !found.contains("Not limited"),
        "{found}"
    );
    let first = result("route%3Dlogin,%20customer%3Dacme");
    assert!(first.contains("Rule 1 matches"), "{first}");
    let unknown = result("route%3Dother,%20customer%3Dacme");
    assert!(
        unknown.contains("Not limited") && unknown.contains("No rule matches."),
        "{unknown}"
    );
    let page = test("route%3Dsearch,%20customer%3Dacme");
    assert_eq!(page.matches("<span class=\"state ok\">Matches</span>").count(), 1);
}

#[test]
fn changes_are_filtered_by_object_and_actor() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let olga = root.add_user("olga", &[("shop", "owner")]);
    assert_eq!(
        olga.put_policy("login", 0, &policy("login", 5, "shop")).status,
        200
    );
    assert_eq!(root.put_policy("mail", 0, &policy("mail", 5, "shop")).status, 200);
    let objects = |query: &str| {
        let page = browser.get(&format!("/e/default/changes?{query}")).body;
        let table = page.split_once("<tbody>").map_or("", |(_, table)| table);
        ["search", "login", "mail"].map(|name| table.contains(&format!("/policies/{name}\">{name}</a>")))
    };
    assert_eq!(objects(""), [true, true, true]);
    assert_eq!(objects("object=login&actor="), [false, true, false]);
    assert_eq!(objects("object=&actor=olga"), [false, true, false]);
    assert_eq!(objects("object=mail&actor=root"), [false, false, true]);
    assert_eq!(objects("object=mail&actor=olga"), [false, false, false]);
    let page = browser.get("/e/default/changes?object=mail&actor=olga").body;
    assert!(page.contains("No change matches."), "{page}");
    for expected in ["name=\"object\" value=\"mail\"", "name=\"actor\" value=\"olga\""] {
        assert!(page.contains(expected), "{page}");
    }
    let export = browser.get("/e/default/changes/export?actor=olga").body;
    assert!(
        export.contains("login") && !export.contains("\"mail\""),
        "{export}"
    );
}

#[test]
fn explanation_names_the_author_of_the_last_change() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let olga = root.add_user("olga", &[("shop", "owner")]);
    let author = || {
        let page = browser.get("/e/default/explain?policy=search&key=acme").body;
        part(&page, "<dt>Last change</dt>", "</dd>").to_owned()
    };
    assert!(
        author().contains("root, <time") && author().contains(": a test"),
        "{}",
        author()
    );
    let saved = olga.put_policy("search", 1, &policy("search", 6, "shop"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    assert!(
        author().contains("olga, <time") && !author().contains("root"),
        "{}",
        author()
    );
}
