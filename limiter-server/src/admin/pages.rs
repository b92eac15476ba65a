//! The admin UI: HTML pages on top of the API.
//!
//! A page reads and changes nothing by itself. It calls the routes of [`api`](crate::admin::api) in
//! this process on behalf of its user ([`PageApi`]), so permissions, validation and audit are those
//! of the API. [`forms`] maps each form to its route, and `tests/pages.rs` compares both with the
//! pages. Every page works without scripts; the scripts refresh numbers and show local times.

mod activity;
mod api_client;
mod app;
mod app_changes;
mod apps;
mod assets;
mod audit;
mod caller;
mod causes;
mod changes;
mod compression;
mod connect;
mod curve;
mod customers;
mod diff;
mod edit;
mod edit_form;
mod edit_tabs;
mod ends;
mod explain;
mod failure;
pub mod forms;
mod history;
mod import;
mod key_fields;
mod layout;
mod links;
mod now;
mod outage;
mod overlays;
mod people;
mod plot;
mod policy;
mod policy_fields;
mod policy_list;
mod policy_mode;
mod preview;
mod proposals;
mod publication;
mod quota_fields;
mod quota_streams;
mod quotas;
mod refresh;
mod revisions;
mod rule_list;
mod rules;
mod rules_history;
mod save;
mod search;
mod security;
mod settings;
mod setup;
mod sign_in;
mod snippets;
mod start;
#[cfg(test)]
mod state_classes;
mod status;
mod status_views;
mod suspended;
mod time;
mod tokens;
mod trials;
mod usage;
mod views;

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware;
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use tower_http::csrf::CsrfLayer;

use crate::admin::Admin;
use crate::admin::pages::failure::PageFailure;

/// The largest body of a form, in bytes.
const MAX_FORM: usize = 4 << 20;

/// The state of the pages. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    admin: Admin,
    /// The routes of the API.
    api: Router,
    allowed_hosts: Arc<[String]>,
}

/// Returns the routes of the API and of the pages.
pub(crate) fn router(admin: Admin, api: Router, allowed_hosts: &[String]) -> Router {
    let pages = Pages {
        admin,
        api: api.clone(),
        allowed_hosts: allowed_hosts.into(),
    };
    let environment = Router::new()
        .route("/", get(apps::first_page))
        .route("/now", get(now::show))
        .route("/customers", get(customers::show))
        .route("/customers/reset", post(customers::reset))
        .route("/customers/raise", post(quotas::raise))
        .route("/rules", get(rules::show).post(rules::save))
        .route("/rules/preview", post(rules::preview))
        .route("/rules/history/{number}", get(rules_history::show))
        .route("/explain", get(explain::show))
        .route("/changes", get(changes::show))
        .route("/changes/export", get(changes::export))
        .route("/status", get(status::show))
        .route("/status/alerts/{id}/clear", post(status::clear_alert))
        .route("/suspended", get(suspended::show).post(suspended::suspend))
        .route("/suspended/confirm", get(suspended::confirm))
        .route("/suspended/{id}/extend", post(suspended::extend))
        .route("/suspended/{id}/end", post(suspended::end))
        .route("/blocks", post(suspended::block))
        .route("/blocks/{id}/end", post(suspended::unblock))
        .route("/apps", get(apps::list).post(apps::create))
        .route("/apps/{app}", get(app::policies))
        .route("/apps/{app}/people", get(people::show).post(people::grant))
        .route("/apps/{app}/people/remove", post(people::revoke))
        .route("/apps/{app}/bounds", post(people::set_bounds))
        .route("/apps/{app}/connect", get(connect::show))
        .route("/apps/{app}/connect/test", post(connect::test))
        .route("/apps/{app}/tokens", get(tokens::of_app))
        .route("/apps/{app}/changes", get(app_changes::show))
        .route("/tokens", get(tokens::list).post(tokens::create))
        .route("/tokens/{id}/rotate", post(tokens::rotate))
        .route("/tokens/{id}/revoke", post(tokens::revoke))
        .route("/tokens/{id}/confirm", post(tokens::confirm))
        .route("/search", get(search::find))
        .route("/new", get(edit::new).post(edit::preview_new))
        .route("/policies/{name}", get(policy::show))
        .route("/policies/{name}/edit", get(edit::edit).post(edit::preview))
        .route("/policies/{name}/save", post(save::save))
        .route(
            "/policies/{name}/delete",
            get(history::ask_deletion).post(history::delete),
        )
        .route("/policies/{name}/restore", post(history::restore))
        .route("/policies/{name}/quotas", post(quotas::set_quota))
        .route("/policies/{name}/quotas/remove", post(quotas::remove_quota))
        .route("/policies/{name}/trial", post(trials::start))
        .route("/policies/{name}/trial/adopt", post(trials::adopt))
        .route("/policies/{name}/trial/drop", post(trials::end))
        .route("/policies/{name}/history/{number}", get(history::revision))
        .route("/proposals/{id}/approve", post(history::approve))
        .route("/proposals/{id}/reject", post(history::reject));
    let private = Router::new()
        .route("/", get(apps::first_environment))
        .route("/signin", get(sign_in::form).post(sign_in::sign_in))
        .route("/setup", get(setup::form).post(setup::set_up))
        .route("/setup/start", get(start::show))
        .route("/setup/environment", post(start::set_look))
        .route("/setup/example", post(start::create_example))
        .route("/setup/import", post(start::preview_import))
        .route("/setup/import/save", post(start::save_import))
        .route("/signout", post(sign_in::sign_out))
        .route("/settings", get(settings::show))
        .route("/settings/environments/{name}", post(settings::set_environment))
        .route("/settings/users", post(settings::create_user))
        .route("/settings/users/{name}", post(settings::change_user))
        .route("/settings/users/{name}/password", post(settings::reset_password))
        .route("/settings/users/{name}/remove", post(settings::remove_user))
        .route("/account", get(settings::account))
        .route("/account/password", post(settings::change_password))
        // A nested router has no path with a slash at its end.
        .route("/e/{environment}/", get(apps::first_page))
        .nest("/e/{environment}", environment)
        .fallback(unknown_page)
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .layer(middleware::from_fn_with_state(pages.clone(), outage::answer))
        .layer(CsrfLayer::new())
        .layer(middleware::from_fn(refresh::with_tag))
        .layer(middleware::from_fn(compression::compress))
        .layer(middleware::map_response(security::with_page_headers))
        .with_state(pages.clone());
    Router::new()
        .route("/assets/{file}", get(assets::read))
        .merge(private)
        .merge(api.layer(middleware::from_fn(compression::compress)))
        .layer(middleware::from_fn_with_state(
            pages,
            security::require_allowed_host,
        ))
}

async fn unknown_page() -> PageFailure {
    PageFailure::not_found()
}

/// Returns a page from its template.
fn render(page: &impl Template) -> Response {
    match page.render() {
        Ok(html) => Html(html).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot render a page");
            PageFailure::internal().into_response()
        }
    }
}

/// Renders a page with a form that the user has to correct.
fn render_unprocessable(page: &impl Template) -> Response {
    let mut response = render(page);
    *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    response
}

/// Answers a form: the browser reads this page next, so a reload does not send the form again.
fn see(path: &str) -> Response {
    Redirect::to(path).into_response()
}
