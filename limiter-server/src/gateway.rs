//! The protocols of clients, in front of one limiter.

pub mod grpc;
pub mod http;
pub mod readiness;

use std::sync::Arc;

use limiter_core::Limiter;

use crate::gateway::readiness::Readiness;
use crate::settings::{EnvoySettings, Settings};

/// The state that all protocols share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gateway(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limiter: Limiter,
    readiness: Readiness,
    node: String,
    envoy: EnvoySettings,
}

impl Gateway {
    /// A gateway in front of a limiter.
    #[must_use]
    pub fn new(limiter: Limiter, settings: &Settings, readiness: Readiness) -> Self {
        Self(Arc::new(Shared {
            limiter,
            readiness,
            node: settings.node.clone(),
            envoy: settings.envoy.clone(),
        }))
    }

    /// The limiter that decides.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    /// Whether the gateway accepts requests.
    #[must_use]
    pub fn readiness(&self) -> &Readiness {
        &self.0.readiness
    }

    /// The name of this node in explanations.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.0.node
    }

    /// The settings of Envoy's rate limit service.
    #[must_use]
    pub fn envoy_settings(&self) -> &EnvoySettings {
        &self.0.envoy
    }
}
