//! Tokens whose creator is removed or disabled.

use limiter_server::store::{NewAccount, NewStoredToken, Store};
use serde_json::{Value, json};

use crate::support::admin::{AdminClient, Credentials, with_sqlite};
use crate::support::server::{Directory, wait_until};
use crate::{Issued, TOKENS, WITHIN, anonymous_status, wait_within, with_policy};

/// The removal of a user revokes the user's tokens, each with an entry of the audit, and does not
/// open the listener.
#[test]
fn tokens_of_a_removed_user_are_revoked_with_audit_entries() {
    let (server, root) = with_policy(with_sqlite(&[]));
    let ann = root.add_user("ann", &[("*", "admin")]);
    let edge = Issued::new(&ann, TOKENS, &["peek:*"]);
    wait_until(|| edge.is_accepted(&server), || server.log());
    assert_eq!(root.send("DELETE", "/users/ann", &[], &Value::Null).status, 204);
    wait_within(WITHIN, || !edge.is_accepted(&server), &server);
    let path = format!("/namespaces/default/audit?object={}", edge.id);
    let audit = root.get(&path).body;
    assert!(
        audit.contains("token.revoke") && audit.contains("edge: its creator ann was removed"),
        "{audit}"
    );
    assert_eq!(anonymous_status(&server), 401);
}

/// A token that was issued with a token of a user ends with this user. The audit names the token
/// that issued it.
#[test]
fn token_issued_with_a_token_ends_with_its_user() {
    let (server, root) = with_policy(with_sqlite(&[]));
    let ann = root.add_user("ann", &[("*", "admin")]);
    let first = Issued::new(&ann, TOKENS, &["admin:admin"]);
    let with_first = AdminClient::new(server.admin(), Credentials::Token(first.secret));
    let second = Issued::new(&with_first, TOKENS, &["admin:admin", "peek:*"]);
    let with_second = AdminClient::new(server.admin(), Credentials::Token(second.secret.clone()));
    let rotated = with_second.send("POST", &format!("{TOKENS}/{}/rotate", second.id), &[], &json!({}));
    assert_eq!(rotated.status, 201, "{}", rotated.body);
    let (id, secret) = (&rotated.json()["id"], &rotated.json()["secret"]);
    let third = Issued {
        id: id.as_str().unwrap().to_owned(),
        secret: secret.as_str().unwrap().to_owned(),
    };
    wait_until(|| third.is_accepted(&server), || server.log());
    assert_eq!(root.send("DELETE", "/users/ann", &[], &Value::Null).status, 204);
    wait_within(WITHIN, || !third.is_accepted(&server), &server);
    assert_eq!(with_second.get("/namespaces/default/policies").status, 401);
    let audit = root
        .get(&format!("/namespaces/default/audit?object={}", third.id))
        .body;
    assert!(
        audit.contains("token:edge") && audit.contains("edge: its creator ann was removed"),
        "{audit}"
    );
}

/// A disabled user can be enabled again, so the user's tokens are suspended, not revoked.
#[test]
fn tokens_of_a_disabled_user_wait_for_confirmation() {
    let (server, root) = with_policy(with_sqlite(&[]));
    let ann = root.add_user("ann", &[("*", "admin")]);
    let edge = Issued::new(&ann, TOKENS, &["peek:*", "admin:viewer"]);
    let kept = Issued::new(&root, TOKENS, &["peek:*"]);
    wait_until(|| edge.is_accepted(&server), || server.log());
    let of_edge = AdminClient::new(server.admin(), Credentials::Token(edge.secret.clone()));
    let reads = || of_edge.get("/namespaces/default/policies").status;
    assert_eq!(reads(), 200);
    let set = |is_admin: bool, is_disabled: bool| {
        let body = json!({ "admin": is_admin, "disabled": is_disabled });
        assert_eq!(root.send("PUT", "/users/ann", &[], &body).status, 204);
    };
    set(false, true);
    assert_eq!(reads(), 401);
    wait_within(WITHIN, || !edge.is_accepted(&server), &server);
    assert!(kept.is_accepted(&server));
    set(false, false);
    assert_eq!(reads(), 401);
    let path = format!("{TOKENS}/{}/confirm", edge.id);
    assert_eq!(root.send("POST", &path, &[], &Value::Null).status, 204);
    assert_eq!(reads(), 200);
    wait_until(|| edge.is_accepted(&server), || server.log());

    // Another change of a disabled user keeps a confirmed token.
    set(false, true);
    assert_eq!(root.send("POST", &path, &[], &Value::Null).status, 204);
    set(true, true);
    assert_eq!(reads(), 200);
    let audit = root.get(&format!("/namespaces/default/audit?object={}", edge.id));
    let suspensions = audit.body.matches("edge: its creator ann was disabled").count();
    assert_eq!(suspensions, 2, "{}", audit.body);
    assert!(audit.body.contains("token.suspend"), "{}", audit.body);
}

/// A former administrator could keep all rights by a token.
#[test]
fn tokens_of_a_former_administrator_for_the_api_wait_for_confirmation() {
    let (server, root) = with_policy(with_sqlite(&[]));
    let grant = |role: &str| {
        let path = "/namespaces/default/grants/user/ann/*";
        assert_eq!(root.send("PUT", path, &[], &json!({ "role": role })).status, 204);
    };
    let set_admin = |is_admin: bool| {
        let body = json!({ "admin": is_admin });
        assert_eq!(root.send("PUT", "/users/ann", &[], &body).status, 204);
    };
    let ann = root.add_user("ann", &[("*", "admin")]);
    let edge = Issued::new(&ann, TOKENS, &["peek:*"]);
    let of_api = Issued::new(&ann, TOKENS, &["peek:*", "admin:admin"]);
    wait_until(
        || edge.is_accepted(&server) && of_api.is_accepted(&server),
        || server.log(),
    );
    let client = AdminClient::new(server.admin(), Credentials::Token(of_api.secret.clone()));
    let reads = || client.get("/namespaces/default/policies").status;
    let confirm = || {
        let path = format!("{TOKENS}/{}/confirm", of_api.id);
        assert_eq!(root.send("POST", &path, &[], &Value::Null).status, 204);
        assert_eq!(reads(), 200);
    };
    // One of both reasons to be an administrator remains.
    set_admin(true);
    grant("viewer");
    assert_eq!(reads(), 200);
    grant("admin");
    set_admin(false);
    assert_eq!(reads(), 200);
    grant("viewer");
    assert_eq!(reads(), 401);
    wait_within(WITHIN, || !of_api.is_accepted(&server), &server);
    assert!(edge.is_accepted(&server), "a token of the gateway alone");
    confirm();
    // Another change of the role of a user that is no administrator keeps a confirmed token.
    grant("owner");
    assert_eq!(reads(), 200);
    set_admin(true);
    set_admin(false);
    assert_eq!(reads(), 401);
    confirm();
    grant("admin");
    let path = "/namespaces/default/grants/user/ann/*";
    assert_eq!(root.send("DELETE", path, &[], &Value::Null).status, 204);
    assert_eq!(reads(), 401);
    let audit = root.get(&format!("/namespaces/default/audit?object={}", of_api.id));
    let reason = "edge: its creator ann is no administrator any more";
    assert_eq!(audit.body.matches(reason).count(), 3, "{}", audit.body);
}

/// A token that is stored after the creator was disabled waits for a confirmation, as all others.
#[tokio::test]
async fn token_of_a_user_that_was_disabled_meanwhile_waits_for_confirmation() {
    let directory = Directory::new();
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let store = Store::open(&url).await.unwrap();
    for (name, is_admin) in [("root", true), ("ann", false)] {
        let account = NewAccount {
            name: name.to_owned(),
            password: None,
            is_admin,
        };
        store.add_account(&account, "setup", 1).await.unwrap();
    }
    let token = |created_by: &str| NewStoredToken {
        id: created_by.to_owned(),
        hash: format!("hash of {created_by}"),
        label: "ci".to_owned(),
        namespace: "default".to_owned(),
        scopes: "check:*".to_owned(),
        created_by: created_by.to_owned(),
        issued_by: created_by.to_owned(),
        created_at: 3,
        expires_at: 100,
    };
    let disabled = store.change_account("ann", false, true, "root", 2).await;
    disabled.unwrap();
    for (creator, is_valid) in [("ann", false), ("root", true), ("of a proxy", true)] {
        store.add_token(&token(creator), None).await.unwrap();
        let stored = store.token("default", creator).await.unwrap().unwrap();
        assert_eq!(stored.is_valid_at(4), is_valid, "{creator}");
    }
}
