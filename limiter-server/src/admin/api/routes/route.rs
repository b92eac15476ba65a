//! A route, and the callers that it accepts.

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

/// Returns a route in one line of the list.
pub(super) const fn route(
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
