//! Warns once for each server whose eviction policy may remove limits in use. Every key of the
//! limiter has a TTL, so any policy but `noeviction` may evict it, and an evicted limit starts
//! over.

use std::collections::HashSet;
use std::time::Duration;

use bb8_redis::redis;
use bb8_redis::redis::RedisError;

use crate::error::StoreError;
use crate::redis::node::Node;
use crate::support::real_time;
use crate::support::sync::Mutex;

const WITHIN: Duration = Duration::from_millis(500);

/// The nodes that a warning was logged for.
#[derive(Debug, Default)]
pub(crate) struct Eviction(Mutex<HashSet<String>>);

impl Eviction {
    /// Checks a node's memory settings, if the user has the permission. No decision depends on the
    /// result.
    pub(crate) async fn check_policy(&self, node: &Node) {
        let warned = real_time::timeout(WITHIN, settings(node)).await;
        match warned {
            Ok(Ok(Some((maxmemory, policy)))) if self.is_first(node) => {
                tracing::warn!(
                    %node,
                    maxmemory,
                    maxmemory_policy = policy,
                    "Redis may evict limits in use; set maxmemory-policy to noeviction"
                );
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%node, %error, "INFO does not report the eviction policy"),
            Err(_) => tracing::debug!(%node, "INFO timed out"),
        }
    }

    fn is_first(&self, node: &Node) -> bool {
        let mut warned = self.0.lock();
        warned.insert(node.to_string())
    }
}

/// Returns the memory bound and the eviction policy, if the policy evicts keys.
async fn settings(node: &Node) -> Result<Option<(u64, String)>, StoreError> {
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    let answer = node.connection(WITHIN).await?.query(&info).await?;
    let text: String = redis::from_redis_value(answer).map_err(RedisError::from)?;
    let value = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    };
    let maxmemory = value("maxmemory")
        .and_then(|bytes| bytes.parse().ok())
        .unwrap_or(0);
    let policy = value("maxmemory_policy").unwrap_or("noeviction");
    Ok((maxmemory > 0 && policy != "noeviction").then(|| (maxmemory, policy.to_owned())))
}
