//! Tells once where a server may drop live limits to make room. Every key of ours has a TTL, so any
//! policy but `noeviction` takes them, and a limit whose key is gone starts anew.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bb8_redis::redis;
use bb8_redis::redis::RedisError;

use crate::error::StoreError;
use crate::redis::client::node::Node;
use crate::support::real_time;

const WITHIN: Duration = Duration::from_millis(500);

/// The nodes of which it was told.
#[derive(Debug, Default)]
pub(crate) struct Eviction(Mutex<HashSet<String>>);

impl Eviction {
    /// Looks at a node's memory settings, if the user may. Nothing depends on it.
    pub(crate) async fn check_policy(&self, node: &Node) {
        let told = real_time::timeout(WITHIN, settings(node)).await;
        match told {
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
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert(node.to_string())
    }
}

/// The bound on memory and what happens at it, where that takes keys.
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
