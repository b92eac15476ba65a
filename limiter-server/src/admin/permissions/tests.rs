use super::*;

fn actor(roles: &[(&str, &str, Role)]) -> Actor {
    let roles = roles.iter().map(|(namespace, app, role)| {
        let (namespace, app) = ((*namespace).to_owned(), (*app).to_owned());
        (namespace, app, *role)
    });
    Actor {
        name: "ann".to_owned(),
        user: "ann".to_owned(),
        roles: roles.collect(),
        ..Actor::default()
    }
}

fn verdicts(actor: &Actor, object: Object<'_>) -> [Permission; 7] {
    AdminAction::ALL.map(|action| may(actor, action, object))
}

const A: Permission = Permission::Allowed;
const P: Permission = Permission::Proposal;
const F: Permission = Permission::Forbidden;
const H: Permission = Permission::Hidden;

/// Each role and action. The columns are those of [`AdminAction::ALL`].
#[test]
fn roles_allow_their_actions() {
    let apps = ["checkout".to_owned()];
    let policy = Object::Policy {
        namespace: "prod",
        apps: Some(&apps),
    };
    let table = [
        (Role::Viewer, [A, F, F, F, F, F, F]),
        (Role::Editor, [A, A, P, F, F, F, F]),
        (Role::Owner, [A, A, A, A, A, F, F]),
    ];
    for (role, expected) in table {
        for app in ["checkout", ALL_APPS] {
            let holder = actor(&[("prod", app, role)]);
            assert_eq!(verdicts(&holder, policy), expected, "{role:?} of {app}");
        }
    }
    let admin = actor(&[("prod", ALL_APPS, Role::Admin)]);
    assert_eq!(verdicts(&admin, policy), [A, A, A, A, A, A, F]);
    let server_admin = Actor {
        is_server_admin: true,
        ..Actor::default()
    };
    assert_eq!(verdicts(&server_admin, policy), [A; 7]);
    assert_eq!(verdicts(&Actor::default(), policy), [H; 7]);
}

#[test]
fn foreign_apps_and_namespaces_are_hidden() {
    let apps = ["checkout".to_owned()];
    let policy = |namespace| Object::Policy {
        namespace,
        apps: Some(&apps),
    };
    for holder in [
        actor(&[("prod", "mobile", Role::Owner)]),
        actor(&[("staging", ALL_APPS, Role::Admin)]),
    ] {
        assert_eq!(verdicts(&holder, policy("prod")), [H; 7]);
    }
    let admin = actor(&[("staging", ALL_APPS, Role::Admin)]);
    assert_eq!(verdicts(&admin, Object::Namespace("prod")), [H; 7]);
}

#[test]
fn policy_of_several_apps_needs_the_role_in_all() {
    let apps = ["checkout".to_owned(), "mobile".to_owned()];
    let policy = Object::Policy {
        namespace: "prod",
        apps: Some(&apps),
    };
    let one = actor(&[("prod", "checkout", Role::Owner)]);
    assert_eq!(verdicts(&one, policy), [A, F, F, F, F, F, F]);
    let mixed = actor(&[
        ("prod", "checkout", Role::Owner),
        ("prod", "mobile", Role::Editor),
    ]);
    assert_eq!(verdicts(&mixed, policy), [A, A, P, F, F, F, F]);
}

#[test]
fn policy_of_all_apps_needs_a_role_in_all_apps() {
    let policy = Object::Policy {
        namespace: "prod",
        apps: None,
    };
    let one = actor(&[("prod", "checkout", Role::Owner)]);
    assert_eq!(verdicts(&one, policy), [A, F, F, F, F, F, F]);
    let all = actor(&[("prod", ALL_APPS, Role::Owner)]);
    assert_eq!(verdicts(&all, policy), [A, A, A, A, A, F, F]);
}

#[test]
fn policy_of_no_app_is_hidden() {
    let policy = Object::Policy {
        namespace: "prod",
        apps: Some(&[]),
    };
    let all = actor(&[("prod", ALL_APPS, Role::Owner)]);
    assert_eq!(verdicts(&all, policy), [H; 7]);
}

#[test]
fn admin_of_one_app_is_no_admin() {
    let holder = actor(&[("prod", "checkout", Role::Admin)]);
    assert_eq!(holder.role_in("prod", "checkout"), None);
}

#[test]
fn grants_never_exceed_the_role_of_their_author() {
    let owner = actor(&[("prod", "checkout", Role::Owner)]);
    for (role, app, expected) in [
        (Role::Viewer, "checkout", true),
        (Role::Owner, "checkout", true),
        (Role::Admin, "checkout", false),
        (Role::Viewer, "mobile", false),
        (Role::Viewer, ALL_APPS, false),
    ] {
        assert_eq!(may_grant(&owner, role, "prod", app), expected, "{role:?} {app}");
    }
    let editor = actor(&[("prod", "checkout", Role::Editor)]);
    assert!(!may_grant(&editor, Role::Viewer, "prod", "checkout"));
    let admin = actor(&[("prod", ALL_APPS, Role::Admin)]);
    assert!(may_grant(&admin, Role::Admin, "prod", ALL_APPS));
    assert!(!may_grant(&admin, Role::Admin, "prod", "checkout"));
    assert!(!may_grant(&admin, Role::Viewer, "staging", "checkout"));
}
