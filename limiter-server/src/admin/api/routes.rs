//! The list of all routes.
//!
//! A test sends each route with each role and compares the answer with [`ROUTES`].

/// The weakest caller that a route accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteAccess {
    /// No credentials.
    Open,
    /// Any identified caller.
    SignedIn,
    /// A viewer of the app.
    Viewer,
    /// An editor of the app.
    Editor,
    /// An owner of the app.
    Owner,
    /// An administrator of the namespace.
    NamespaceAdmin,
    /// An administrator of the server.
    ServerAdmin,
}

/// A route.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The method.
    pub method: &'static str,
    /// The path below `/admin/v1`.
    pub path: &'static str,
    /// The weakest caller.
    pub access: RouteAccess,
    /// One sentence.
    pub summary: &'static str,
}

const fn route(
    method: &'static str,
    path: &'static str,
    access: RouteAccess,
    summary: &'static str,
) -> Route {
    Route {
        method,
        path,
        access,
        summary,
    }
}

use RouteAccess::{Editor, NamespaceAdmin, Open, Owner, ServerAdmin, SignedIn, Viewer};

/// All routes.
pub const ROUTES: [Route; 64] = [
    route("GET", "/openapi.json", Open, "This document."),
    route(
        "POST",
        "/setup",
        Open,
        "Create the first administrator by the link of the first run.",
    ),
    route("POST", "/session", Open, "Sign in by a password."),
    route("GET", "/session", SignedIn, "The caller with its roles."),
    route("DELETE", "/session", SignedIn, "Sign out."),
    route(
        "GET",
        "/namespaces",
        SignedIn,
        "The namespaces that the caller may read.",
    ),
    route(
        "PUT",
        "/namespaces/{namespace}",
        NamespaceAdmin,
        "Set name and colour of a namespace on the pages.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/policies",
        Viewer,
        "Policies by name; after, limit, app, q, brief.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/policies/{name}",
        Viewer,
        "A policy with its ETag.",
    ),
    route(
        "PUT",
        "/namespaces/{namespace}/policies/{name}",
        Owner,
        "Save a policy; If-Match or If-None-Match: *.",
    ),
    route(
        "DELETE",
        "/namespaces/{namespace}/policies/{name}",
        Owner,
        "Delete a policy; If-Match.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/policies/{name}/history",
        Viewer,
        "Revisions, the newest first.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/policies/{name}/history/{number}",
        Viewer,
        "A revision.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/policies/{name}/restore",
        Owner,
        "Save an earlier revision again; If-Match.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/policies/{name}/preview",
        Viewer,
        "Differences and warnings of a text.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/policies/{name}/usage",
        Viewer,
        "Decisions per minute or hour; from, to, span.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/usage",
        Viewer,
        "Decisions by policy; from, to.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/policies/{name}/keys/reset",
        Editor,
        "Discard the usage of a key.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/policies/{name}/test-calls",
        Editor,
        "Send ten calls of a test key to the gateway of this node.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/keys/activity",
        Viewer,
        "Denied and nearly exhausted keys at this node; policy, from, to.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/keys",
        Viewer,
        "The state of a key in all policies; key.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/unmatched",
        NamespaceAdmin,
        "Descriptors without a rule or a policy, on this node.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/quota-assignments",
        NamespaceAdmin,
        "The assignments of this node's quota streams.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/rules/match",
        Viewer,
        "The rule, policy and key of a descriptor.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/policies/{name}/quotas",
        Editor,
        "Set the quota of a key, with or without an end; If-Match.",
    ),
    route(
        "DELETE",
        "/namespaces/{namespace}/policies/{name}/quotas",
        Editor,
        "Remove the quota of a key; If-Match.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/policies/{name}/trial",
        Viewer,
        "The trial with its decisions and those of the policy since its start.",
    ),
    route(
        "PUT",
        "/namespaces/{namespace}/policies/{name}/trial",
        Owner,
        "Decide other numbers beside the policy; If-Match.",
    ),
    route(
        "DELETE",
        "/namespaces/{namespace}/policies/{name}/trial",
        Owner,
        "End the trial; If-Match.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/policies/{name}/trial/adopt",
        Owner,
        "Adopt the numbers of the trial; If-Match.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/rules",
        Viewer,
        "The rules with their ETag.",
    ),
    route(
        "PUT",
        "/namespaces/{namespace}/rules",
        NamespaceAdmin,
        "Save the rules; If-Match.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/suspensions",
        Viewer,
        "Suspensions: scope, enforcement, end; at.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/suspensions",
        Owner,
        "Suspend a policy, an app or all; until or for_seconds.",
    ),
    route(
        "PUT",
        "/namespaces/{namespace}/suspensions/{id}",
        Owner,
        "Change the end of a suspension.",
    ),
    route(
        "DELETE",
        "/namespaces/{namespace}/suspensions/{id}",
        Owner,
        "End a suspension.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/blocks",
        Viewer,
        "Blocks of keys, networks and parts of keys; at.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/blocks",
        Editor,
        "Block keys for an app or for all.",
    ),
    route(
        "PUT",
        "/namespaces/{namespace}/blocks/{id}",
        Editor,
        "Change the end of a block.",
    ),
    route(
        "DELETE",
        "/namespaces/{namespace}/blocks/{id}",
        Editor,
        "End a block.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/subscribers",
        Viewer,
        "Processes that follow the registry, with revision, version and clock.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/apps",
        Viewer,
        "Apps with bounds and the caller's role.",
    ),
    route(
        "PUT",
        "/namespaces/{namespace}/apps/{app}",
        Owner,
        "Create an app or set its bounds.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/grants",
        Viewer,
        "Roles of users and groups.",
    ),
    route(
        "PUT",
        "/namespaces/{namespace}/grants/{kind}/{subject}/{app}",
        Owner,
        "Grant a role.",
    ),
    route(
        "DELETE",
        "/namespaces/{namespace}/grants/{kind}/{subject}/{app}",
        Owner,
        "Remove a role.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/tokens",
        NamespaceAdmin,
        "Tokens without their secrets.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/tokens",
        NamespaceAdmin,
        "Create a token.",
    ),
    route(
        "DELETE",
        "/namespaces/{namespace}/tokens/{id}",
        NamespaceAdmin,
        "Revoke a token.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/tokens/{id}/rotate",
        NamespaceAdmin,
        "Replace a token.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/tokens/{id}/confirm",
        NamespaceAdmin,
        "Accept a suspended token again.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/proposals",
        Viewer,
        "Proposals, the newest first.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/proposals/{id}/approve",
        Owner,
        "Approve a proposal.",
    ),
    route(
        "POST",
        "/namespaces/{namespace}/proposals/{id}/reject",
        Owner,
        "Reject a proposal.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/audit",
        Viewer,
        "Changes, the newest first.",
    ),
    route(
        "DELETE",
        "/namespaces/{namespace}/alerts/{id}",
        NamespaceAdmin,
        "Clear an alert.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/status",
        Viewer,
        "Publication, alerts and nodes.",
    ),
    route(
        "GET",
        "/namespaces/{namespace}/connect",
        Viewer,
        "The addresses of the gateway, and the last call of an app; app.",
    ),
    route("GET", "/users", ServerAdmin, "Users."),
    route("POST", "/users", ServerAdmin, "Create a user."),
    route(
        "PUT",
        "/users/{name}",
        ServerAdmin,
        "Change the role and state of a user.",
    ),
    route("DELETE", "/users/{name}", ServerAdmin, "Remove a user."),
    route(
        "PUT",
        "/users/{name}/password",
        ServerAdmin,
        "Set a password; users know their current one.",
    ),
    route(
        "GET",
        "/audit",
        ServerAdmin,
        "Changes of users, the newest first.",
    ),
];
