//! The forms of the pages, each with the route of the API that it uses.
//!
//! `tests/pages.rs` compares the list with the forms that the pages contain and with
//! [`ROUTES`](crate::admin::api::routes::ROUTES).

/// A form.
#[derive(Clone, Copy, Debug)]
pub struct FormRoute {
    /// The path to which the form is sent, with names of parameters in braces.
    pub action: &'static str,
    /// The method of the route of the API.
    pub method: &'static str,
    /// The path of the route of the API below `/admin/v1`.
    pub api: &'static str,
}

const fn form(action: &'static str, method: &'static str, api: &'static str) -> FormRoute {
    FormRoute { action, method, api }
}

/// All forms that send a POST request.
pub const FORMS: &[FormRoute] = &[
    form("/setup", "POST", "/setup"),
    form("/setup/environment", "PUT", "/namespaces/{namespace}"),
    form("/setup/example", "PUT", "/namespaces/{namespace}/policies/{name}"),
    // The preview of an import reads only.
    form("/setup/import", "GET", "/namespaces/{namespace}/rules"),
    form("/setup/import/save", "POST", "/namespaces/{namespace}/import"),
    form("/signin", "POST", "/session"),
    form("/signout", "DELETE", "/session"),
    form("/settings/environments/{name}", "PUT", "/namespaces/{namespace}"),
    form("/settings/users", "POST", "/users"),
    form("/settings/users/{name}", "PUT", "/users/{name}"),
    form("/settings/users/{name}/password", "PUT", "/users/{name}/password"),
    form("/settings/users/{name}/remove", "DELETE", "/users/{name}"),
    form("/account/password", "PUT", "/users/{name}/password"),
    form(
        "/e/{environment}/apps/{app}/people",
        "PUT",
        "/namespaces/{namespace}/grants/{kind}/{subject}/{app}",
    ),
    form(
        "/e/{environment}/apps/{app}/people/remove",
        "DELETE",
        "/namespaces/{namespace}/grants/{kind}/{subject}/{app}",
    ),
    form(
        "/e/{environment}/apps/{app}/bounds",
        "PUT",
        "/namespaces/{namespace}/apps/{app}",
    ),
    form(
        "/e/{environment}/tokens",
        "POST",
        "/namespaces/{namespace}/tokens",
    ),
    form(
        "/e/{environment}/tokens/{id}/rotate",
        "POST",
        "/namespaces/{namespace}/tokens/{id}/rotate",
    ),
    form(
        "/e/{environment}/tokens/{id}/revoke",
        "DELETE",
        "/namespaces/{namespace}/tokens/{id}",
    ),
    form(
        "/e/{environment}/tokens/{id}/confirm",
        "POST",
        "/namespaces/{namespace}/tokens/{id}/confirm",
    ),
    form(
        "/e/{environment}/new",
        "POST",
        "/namespaces/{namespace}/policies/{name}/preview",
    ),
    form(
        "/e/{environment}/policies/{name}/edit",
        "POST",
        "/namespaces/{namespace}/policies/{name}/preview",
    ),
    form(
        "/e/{environment}/policies/{name}/save",
        "PUT",
        "/namespaces/{namespace}/policies/{name}",
    ),
    form(
        "/e/{environment}/policies/{name}/delete",
        "DELETE",
        "/namespaces/{namespace}/policies/{name}",
    ),
    form(
        "/e/{environment}/policies/{name}/restore",
        "POST",
        "/namespaces/{namespace}/policies/{name}/restore",
    ),
    form(
        "/e/{environment}/policies/{name}/quotas",
        "POST",
        "/namespaces/{namespace}/policies/{name}/quotas",
    ),
    form(
        "/e/{environment}/customers/raise",
        "POST",
        "/namespaces/{namespace}/policies/{name}/quotas",
    ),
    form(
        "/e/{environment}/policies/{name}/trial",
        "PUT",
        "/namespaces/{namespace}/policies/{name}/trial",
    ),
    form(
        "/e/{environment}/policies/{name}/trial/adopt",
        "POST",
        "/namespaces/{namespace}/policies/{name}/trial/adopt",
    ),
    form(
        "/e/{environment}/policies/{name}/trial/drop",
        "DELETE",
        "/namespaces/{namespace}/policies/{name}/trial",
    ),
    form(
        "/e/{environment}/apps",
        "PUT",
        "/namespaces/{namespace}/apps/{app}",
    ),
    form(
        "/e/{environment}/apps/{app}/connect/test",
        "POST",
        "/namespaces/{namespace}/policies/{name}/test-calls",
    ),
    form(
        "/e/{environment}/policies/{name}/quotas/remove",
        "PUT",
        "/namespaces/{namespace}/policies/{name}",
    ),
    form(
        "/e/{environment}/proposals/{id}/approve",
        "POST",
        "/namespaces/{namespace}/proposals/{id}/approve",
    ),
    form(
        "/e/{environment}/proposals/{id}/reject",
        "POST",
        "/namespaces/{namespace}/proposals/{id}/reject",
    ),
    form(
        "/e/{environment}/customers/reset",
        "POST",
        "/namespaces/{namespace}/policies/{name}/keys/reset",
    ),
    form(
        "/e/{environment}/rules/preview",
        "POST",
        "/namespaces/{namespace}/rules/preview",
    ),
    form(
        "/e/{environment}/suspended",
        "POST",
        "/namespaces/{namespace}/suspensions",
    ),
    form(
        "/e/{environment}/suspended/{id}/extend",
        "PUT",
        "/namespaces/{namespace}/suspensions/{id}",
    ),
    form(
        "/e/{environment}/suspended/{id}/end",
        "DELETE",
        "/namespaces/{namespace}/suspensions/{id}",
    ),
    form(
        "/e/{environment}/blocks",
        "POST",
        "/namespaces/{namespace}/blocks",
    ),
    form(
        "/e/{environment}/blocks/{id}/end",
        "DELETE",
        "/namespaces/{namespace}/blocks/{id}",
    ),
    form("/e/{environment}/rules", "PUT", "/namespaces/{namespace}/rules"),
    form(
        "/e/{environment}/status/alerts/{id}/clear",
        "DELETE",
        "/namespaces/{namespace}/alerts/{id}",
    ),
];
