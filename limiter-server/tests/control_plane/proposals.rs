//! Proposals that are rejected by an owner or withdrawn by their author.

use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::server::Server;

const PROPOSALS: &str = "/namespaces/default/proposals";
const SEARCH: &str = "/namespaces/default/policies/search";
const PAGE: &str = "/e/default/policies/search";

/// A server with a policy of the app `shop` in bounds, and its editor `eve`.
fn with_bounds() -> (Server, AdminClient, AdminClient) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let bounds = json!({ "bounds": { "max_capacity": 10 } });
    let set = root.send("PUT", "/namespaces/default/apps/shop", &[], &bounds);
    assert_eq!(set.status, 204, "{}", set.body);
    let saved = root.put_policy("search", 0, &policy("search", 5, "shop"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let editor = root.add_user("eve", &[("shop", "editor")]);
    (server, root, editor)
}

fn propose(editor: &AdminClient, capacity: u32) -> String {
    let proposed = editor.put_policy("search", 1, &policy("search", capacity, "shop"));
    assert_eq!(proposed.status, 202, "{}", proposed.body);
    proposed.json()["proposal"].as_str().unwrap().to_owned()
}

fn decide(client: &AdminClient, id: &str, decision: &str, reason: &Value) -> u16 {
    let path = format!("{PROPOSALS}/{id}/{decision}");
    client
        .send("POST", &path, &[], &json!({ "reason": reason }))
        .status
}

/// The state of a proposal, and the user that decided.
fn state(client: &AdminClient, id: &str) -> (Value, Value) {
    let list = client.get(&format!("{PROPOSALS}?all=true")).json();
    let proposals = list["proposals"].as_array().unwrap();
    let found = proposals.iter().find(|of| of["id"] == id).unwrap();
    (found["state"].clone(), found["decided_by"].clone())
}

#[test]
fn owner_rejects_and_author_withdraws_a_proposal() {
    let (_server, root, editor) = with_bounds();
    let [rejected, withdrawn] = [50, 60].map(|capacity| propose(&editor, capacity));
    let owner = root.add_user("olga", &[("shop", "owner")]);
    let others = [
        (root.add_user("fred", &[("mobile", "owner")]), 404),
        (root.add_user("vera", &[("shop", "viewer")]), 403),
        (root.add_user("ed", &[("shop", "editor")]), 403),
    ];
    for (other, status) in &others {
        for decision in ["reject", "approve"] {
            assert_eq!(
                decide(other, &rejected, decision, &Value::Null),
                *status,
                "{decision}"
            );
        }
    }
    assert_eq!(state(&root, &rejected), (json!("open"), Value::Null));

    assert_eq!(decide(&owner, &rejected, "reject", &json!("too many")), 204);
    assert_eq!(state(&editor, &rejected), (json!("rejected"), json!("olga")));
    assert_eq!(decide(&editor, &withdrawn, "reject", &Value::Null), 204);
    assert_eq!(state(&owner, &withdrawn), (json!("rejected"), json!("eve")));
    // A decision is final.
    for (client, decision) in [(&owner, "reject"), (&owner, "approve"), (&editor, "reject")] {
        assert_eq!(
            decide(client, &rejected, decision, &Value::Null),
            404,
            "{decision}"
        );
    }
    let open = owner.get(PROPOSALS).json();
    assert_eq!(open["proposals"], json!([]));
    let current = root.get(SEARCH).json();
    assert_eq!(current["revision"], 1);
    assert!(
        current["toml"].as_str().unwrap().contains("capacity = 5"),
        "{current}"
    );

    // The people of the app read the decisions in its history, with the reason.
    for client in [&editor, &owner] {
        let audit = client.get("/namespaces/default/audit?object=search").json();
        let entries = audit["entries"].as_array().unwrap();
        let decisions = entries.iter().filter(|of| of["action"] == "proposal.reject");
        let actors: Vec<&Value> = decisions.clone().map(|of| &of["actor"]).collect();
        assert_eq!(actors, ["eve", "olga"], "{audit}");
        let reasons = decisions.map(|of| of["detail"].as_str().unwrap());
        assert!(
            reasons
                .clone()
                .any(|of| of == format!("proposal {rejected}: too many")),
            "{audit}"
        );
        assert!(
            reasons.clone().any(|of| of == format!("proposal {withdrawn}")),
            "{audit}"
        );
    }
    let audit = others[0].0.get("/namespaces/default/audit?object=search").json();
    assert_eq!(audit["entries"], json!([]), "{audit}");
}

#[test]
fn pages_reject_and_withdraw_a_proposal() {
    let (server, root, editor) = with_bounds();
    root.add_user("olga", &[("shop", "owner")]);
    root.add_user("fred", &[("mobile", "owner")]);
    let mut owner = Browser::signed_in(&server, "olga");
    let mut author = Browser::signed_in(&server, "eve");
    let mut foreign = Browser::signed_in(&server, "fred");
    let fields = [("policy", "search")];
    for (decides, button) in [("owner", "Reject"), ("author", "Withdraw")] {
        let id = propose(&editor, 50);
        let action = format!("/e/default/proposals/{id}/reject");
        assert_eq!(foreign.post(&action, &fields).status, 404);
        let browser = if decides == "owner" {
            &mut owner
        } else {
            &mut author
        };
        let page = browser.get(PAGE).body;
        assert!(
            page.contains(&action) && page.contains(&format!("<button>{button}</button>")),
            "{page}"
        );
        let sent = browser.post(&action, &fields);
        assert_eq!(sent.status, 303, "{}", sent.body);
        assert_eq!(
            sent.header("location"),
            Some("/e/default/policies/search?notice=rejected")
        );
        let page = browser.get(PAGE).body;
        assert!(!page.contains("Proposed by eve"), "{page}");
        assert_eq!(state(&root, &id).0, "rejected");
    }
    let changes = owner.get("/e/default/apps/shop/changes").body;
    assert!(changes.contains("rejected a change of the policy"), "{changes}");
}

/// An owner can give a key a quota above the bounds. A change of other numbers by an editor
/// exceeds no bound.
#[test]
fn quota_of_an_owner_above_the_bounds_leaves_the_changes_of_editors() {
    let (_server, root, editor) = with_bounds();
    let quota = "[[override]]\npolicy = 'search'\nkey = 'acme'\ncapacity = 50\nrate = '1/h'\n";
    let text = |capacity: u32| policy("search", capacity, "shop") + quota;
    assert_eq!(root.put_policy("search", 1, &text(5)).status, 200);
    let saved = editor.put_policy("search", 2, &text(6));
    assert_eq!(saved.status, 200, "{}", saved.body);
    assert_eq!(editor.put_policy("search", 3, &text(11)).status, 202);
    let higher = text(6).replace("capacity = 50", "capacity = 51");
    assert_eq!(editor.put_policy("search", 3, &higher).status, 202);
}
