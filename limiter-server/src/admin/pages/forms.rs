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
    form("/signin", "POST", "/session"),
    form("/signout", "DELETE", "/session"),
];
