//! The forms that the pages offer to each role.

use limiter_server::admin::api::routes::{ROUTES, RouteAccess};
use limiter_server::admin::pages::forms::FORMS;

use super::edit::matches;
use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;

/// Forms that change the user itself.
const OWN: [&str; 2] = ["/signout", "/account/password"];
/// Forms of an editor whose route also serves owners: the API permits changes of numbers.
const OF_NUMBERS: [&str; 2] = [
    "/e/{environment}/policies/{name}/save",
    "/e/{environment}/policies/{name}/quotas/remove",
];

/// The access that the form of a page needs.
fn access(action: &str) -> RouteAccess {
    let of_action = FORMS.iter().filter(|form| matches(form.action, action));
    let accesses = of_action.map(|form| {
        let route = ROUTES
            .iter()
            .find(|of| of.method == form.method && of.path == form.api);
        let access = route.unwrap_or_else(|| panic!("{form:?}")).access;
        if OF_NUMBERS.contains(&form.action) {
            RouteAccess::Editor
        } else {
            access
        }
    });
    accesses.max().unwrap_or_else(|| panic!("{action} is not listed"))
}

#[test]
fn pages_offer_each_role_the_forms_that_it_may_send() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let roles = [
        ("viewer", "shop", RouteAccess::Viewer),
        ("editor", "shop", RouteAccess::Editor),
        ("owner", "shop", RouteAccess::Owner),
        ("admin", "*", RouteAccess::NamespaceAdmin),
    ];
    let mut offered = Vec::new();
    for (role, app, most) in roles {
        root.add_user(role, &[(app, role)]);
        let browser = Browser::signed_in(&server, role);
        let mut forms = 0;
        for page in crate::PAGES {
            let answer = browser.get(page);
            assert!(
                matches!(answer.status, 200 | 303 | 403 | 404),
                "{role} {page}: {}",
                answer.status
            );
            for rest in answer.body.split("<form ").skip(1) {
                let tag = rest.split('>').next().unwrap_or_default();
                let (_, action) = tag.split_once("action=\"").unwrap();
                let action = action.split('"').next().unwrap_or_default();
                if tag.contains("method=\"get\"")
                    || OWN.contains(&action)
                    || action == "/signin"
                    || action == "/setup"
                {
                    continue;
                }
                assert!(access(action) <= most, "{role} {page}: {action}");
                forms += 1;
            }
        }
        offered.push(forms);
    }
    assert_eq!(offered[0], 0, "a viewer changes nothing");
    assert!(offered.is_sorted_by(|less, more| less < more), "{offered:?}");
}
