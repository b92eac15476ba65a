//! The client of an HTTP request, and the check of its scopes.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use axum::http::request::Parts;

use crate::access::{Action, Client, Target};
use crate::gateway::http::problem::Problem;
use crate::gateway::issued_policies::action_on;
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
    /// Returns the client of a request, which must be valid.
    pub(super) fn of_request(gateway: Gateway, request: &Parts) -> Result<Self, Problem> {
        let client = credentials::client(&request.headers, &request.extensions);
        let valid = gateway.access().validate(&client);
        valid.map_err(|denial| Problem::of_denial(&denial))?;
        let peer = request.extensions.get::<ConnectInfo<SocketAddr>>();
        Ok(Self {
            gateway,
            client,
            peer: peer.map(|peer| peer.0.ip()),
        })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Requires that the client may take an action on a policy.
    pub(super) fn require(&self, action: Action, policy: &str) -> Result<(), Problem> {
        let allowed = self.gateway.may(&self.client, action, policy);
        allowed.map_err(|denial| Problem::of_denial(&denial))
    }

    /// Requires that the client may take an action on the policy of an id, which may have been
    /// removed after this node issued the id, or replaced by one of the other kind.
    pub(super) fn require_by_id(&self, action: Action, policy: &str) -> Result<(), Problem> {
        let registry = self.gateway.limiter().registry();
        let apps = self.gateway.issued_policies().apps(action, policy);
        let target = Target {
            removed_apps: Some(&apps),
            ..Target::policy(policy)
        };
        let in_force = registry.get(policy);
        let is_of_kind = in_force.is_some_and(|entry| action_on(entry.policy()) == action);
        match is_of_kind || apps.is_empty() {
            true => self.require_on(action, &target.in_registry(registry)),
            false => self.require_on(action, &target),
        }
    }

    /// Requires that the client may take an action on a target.
    pub(super) fn require_on(&self, action: Action, target: &Target<'_>) -> Result<(), Problem> {
        let allowed = self.gateway.access().may(&self.client, action, target);
        allowed.map_err(|denial| Problem::of_denial(&denial))
    }
}
