//! The admin listener, which accepts connections before the database has answered.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use tokio::sync::watch;
use tower::{ServiceExt as _, service_fn};

use crate::admin::Admin;
use crate::admin::api::problem::SUSPEND_COMMAND;
use crate::gateway::http::METRICS_PATH;
use crate::listener::http::HttpVersions;
use crate::listener::{self, Listener};
use crate::settings::{Settings, TlsSettings};

/// Returns the TLS of the admin listener: none on loopback addresses, which a proxy on this machine
/// uses.
pub(super) fn tls(settings: &Settings, address: SocketAddr) -> Option<&TlsSettings> {
    settings.tls.as_ref().filter(|_| !address.ip().is_loopback())
}

/// Serves the admin part as soon as its router is set, and the metrics if their router is given.
pub(super) async fn serve(
    listener: Listener,
    (router, metrics): (Arc<OnceLock<Router>>, Option<Router>),
    end: watch::Receiver<bool>,
) {
    let routes = service_fn(move |request: Request<Incoming>| {
        let metrics = metrics.as_ref().filter(|_| request.uri().path() == METRICS_PATH);
        let router = metrics.or_else(|| router.get()).cloned();
        async move {
            match router {
                Some(router) => router.oneshot(request).await,
                None => Ok::<_, Infallible>(waiting()),
            }
        }
    });
    listener::http::serve(listener, HttpVersions::All, routes, end).await;
}

/// Returns the answer while the database has not answered yet.
fn waiting() -> Response {
    let text = format!(
        "The database does not answer. Limits stay in force.\nPolicies are read-only until it answers.\n\
         This command suspends policies with Redis only:\n  {SUSPEND_COMMAND}\n"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::RETRY_AFTER, "5"),
    ];
    (StatusCode::SERVICE_UNAVAILABLE, headers, text).into_response()
}

/// Prints the link of the first run to standard error, if there is no user yet.
#[expect(clippy::print_stderr, reason = "the link must not be in the log")]
pub(super) async fn offer_setup(admin: &Admin, settings: &Settings, address: SocketAddr) {
    let scheme = tls(settings, address).map_or("http", |_| "https");
    match admin.offer_setup().await {
        Ok(Some(secret)) => eprintln!(
            "Create the first administrator with this link, which is valid for 24 hours:\n  \
             {scheme}://{address}/setup?token={}",
            secret.reveal()
        ),
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, "cannot create the link of the first run"),
    }
}
