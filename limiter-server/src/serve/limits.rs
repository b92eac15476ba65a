//! Builds the limiter of the process.

use limiter_core::Limiter;
use limiter_core::registry::PolicyRegistry;

use crate::settings::{RedisDeployment, StoreSettings};

/// The clients of the server belong to all apps, so the policies of all apps apply.
const EVERY_APP: &str = "*";

/// Builds the limiter for a store. Does not connect.
///
/// # Errors
///
/// The reason, which contains no password.
pub(crate) fn build(store: &StoreSettings, registry: &PolicyRegistry) -> Result<Limiter, String> {
    let (deployment, namespace) = match store {
        StoreSettings::InProcess { .. } => {
            return Ok(Limiter::in_process().registry(registry).app(EVERY_APP).build());
        }
        StoreSettings::Redis {
            deployment,
            namespace,
        } => (deployment, namespace),
    };
    let builder = match deployment {
        RedisDeployment::Standalone(url) => Limiter::redis(url),
        RedisDeployment::Cluster(urls) => Limiter::redis_cluster(urls.iter().cloned()),
        RedisDeployment::Sentinel { urls, master } => {
            let primary = match master.contains("://") {
                true => master.clone(),
                false => format!("redis://{master}"),
            };
            Limiter::redis_sentinel(urls.iter().cloned(), primary)
        }
    };
    builder
        .namespace(namespace)
        .registry(registry)
        .app(EVERY_APP)
        .build()
        .map_err(|error| format!("cannot use the Redis settings: {error}"))
}
