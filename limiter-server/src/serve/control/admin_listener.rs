//! The admin listener, which accepts connections before the database has answered.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::watch;
use tower::ServiceExt as _;

use crate::admin::api::problem::SUSPEND_COMMAND;

/// Serves the admin part as soon as its router is set.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    router: Arc<OnceLock<Router>>,
    mut end: watch::Receiver<bool>,
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the admin listener failed: {error}");
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let ended = async move {
        // An error means that the sender is gone, which is an end as well.
        let _ = end.wait_for(|end| *end).await;
    };
    let answer = move |request: Request| {
        let router = router.get().cloned();
        async move {
            match router {
                Some(router) => router.oneshot(request).await.into_response(),
                None => waiting(),
            }
        }
    };
    let service = Router::new().fallback(answer);
    let service = service.into_make_service_with_connect_info::<std::net::SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(ended)
        .await
        .map_err(failed)
}

/// The answer while the database has not answered yet.
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
