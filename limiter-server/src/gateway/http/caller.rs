//! The client of an HTTP request, and the check of its scopes.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::{Action, Client};
use crate::gateway::http::body;
use crate::gateway::http::problem::Problem;
use crate::gateway::{Gateway, credentials};

/// The gateway as one client uses it.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) gateway: Gateway,
    client: Client,
    /// The address of the client; `None` on a unix socket.
    pub(super) peer: Option<IpAddr>,
}

impl Caller {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Requires that the client may take an action on a policy.
    pub(super) fn require(&self, action: Action, policy: &str) -> Result<(), Problem> {
        let allowed = self.gateway.may(&self.client, action, policy);
        allowed.map_err(|denial| Problem::of_denial(&denial))
    }
}

impl FromRequestParts<Gateway> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, Problem> {
        Ok(Self {
            gateway: gateway.clone(),
            client: credentials::client(&parts.headers, &parts.extensions),
            peer: parts
                .extensions
                .get::<ConnectInfo<SocketAddr>>()
                .map(|peer| peer.0.ip()),
        })
    }
}

/// Rejects requests of invalid clients without keeping their bodies.
pub(super) async fn require_client(State(gateway): State<Gateway>, request: Request, next: Next) -> Response {
    let client = credentials::client(request.headers(), request.extensions());
    match gateway.access().validate(&client) {
        Ok(()) => next.run(request).await,
        Err(denial) => {
            body::discard(request).await;
            Problem::of_denial(&denial).into_response()
        }
    }
}
