//! The policies of the process: a file that is followed, the example, and the registry in Redis.
//!
//! A process with Redis or a database starts with the policies of its cache, if there is one. It is
//! ready after the first reply of Redis, also if Redis has no registry.
//!
//! Invariant: a file with errors changes nothing, and a Redis without a registry does not end
//! policies of the cache. Tests: `tests/serve.rs`, `tests/lifecycle.rs`, `tests/state_dir.rs`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use limiter_core::Limiter;
use limiter_core::registry::{FileSource, PolicyRegistry, RedisRegistry, RedisSubscription, RegistryError};
use toml::{Table, Value};

use crate::error_text::with_causes;
use crate::gateway::readiness::Readiness;
use crate::gateway::served_revision::CachedRevision;
use crate::overlay_text;
use crate::policy_text::parse_rules;
use crate::serve::cache;
use crate::settings::Policies;

/// The policies of the example.
const EXAMPLE: &str = include_str!("../../examples/policies.toml");
/// The interval at which a failed first subscription is examined again.
const SUBSCRIPTION_INTERVAL: Duration = Duration::from_millis(100);

/// The source of policies besides Redis.
#[derive(Debug)]
pub(super) struct Source {
    registry: PolicyRegistry,
    file: Option<Arc<FollowedFile>>,
    has_policies: bool,
    cached: Option<CachedRevision>,
}

/// The policy file, with the task that follows it.
#[derive(Debug)]
struct FollowedFile {
    path: PathBuf,
    source: Mutex<Option<FileSource>>,
}

impl FollowedFile {
    /// Reads the file, and blocks the thread. A file with errors changes nothing.
    fn reload(&self, registry: &PolicyRegistry) {
        let path = self.path.display();
        let Ok(mut source) = self.source.try_lock() else {
            tracing::info!(%path, "policy file is being read already");
            return;
        };
        match FileSource::follow(registry, &*self.path) {
            Ok(new) => {
                if let Some(last) = source.replace(new) {
                    last.stop();
                }
                tracing::info!(%path, "policy file read again");
            }
            Err(error) => {
                let reason = with_causes(&error);
                tracing::warn!(%path, %reason, "policy file rejected; keeping the last policies");
            }
        }
    }
}

impl Source {
    /// Reads the policies and follows their file. Policies of Redis and of the database are read
    /// later; until then, those of the cache are in force.
    pub(super) fn open(policies: &Policies, state_dir: Option<&Path>) -> Result<Self, String> {
        match policies {
            Policies::File(path) => {
                let registry = PolicyRegistry::new();
                let source = FileSource::follow(&registry, path).map_err(|error| with_causes(&error))?;
                Ok(Self {
                    registry,
                    file: Some(Arc::new(FollowedFile {
                        path: path.clone(),
                        source: Mutex::new(Some(source)),
                    })),
                    has_policies: true,
                    cached: None,
                })
            }
            Policies::Example => Ok(Self {
                registry: PolicyRegistry::from_toml(EXAMPLE).map_err(|error| with_causes(&error))?,
                file: None,
                has_policies: true,
                cached: None,
            }),
            Policies::Redis | Policies::Database { .. } => {
                let registry = PolicyRegistry::new();
                let cached = state_dir.and_then(|directory| cache::load(directory, &registry));
                Ok(Self {
                    registry,
                    file: None,
                    has_policies: cached.is_some(),
                    cached,
                })
            }
        }
    }

    pub(super) fn policies(&self) -> &PolicyRegistry {
        &self.registry
    }

    /// Returns whether policies are in force before the first reply from Redis.
    pub(super) fn has_policies(&self) -> bool {
        self.has_policies
    }

    /// Returns the revision of the policies, if they are those of the cache.
    pub(super) fn cached(&self) -> Option<CachedRevision> {
        self.cached
    }

    /// Reads the file in a thread that may block: the file system may not answer, and the process
    /// must still end.
    pub(super) fn reload(&self) {
        let Some(file) = &self.file else {
            tracing::info!("no policy file to read again");
            return;
        };
        let (file, registry) = (Arc::clone(file), self.registry.clone());
        tokio::task::spawn_blocking(move || file.reload(&registry));
    }
}

/// Follows the registry in Redis in a task, if the limiter uses Redis. The gateway is ready when
/// Redis has answered once, also if it has no registry yet.
pub(super) fn subscribe(limiter: &Limiter, namespace: &str, (readiness, is_cached): (&Readiness, bool)) {
    let Ok(redis) = limiter.redis_registry() else {
        return;
    };
    let readiness = readiness.clone();
    let (registry, namespace) = (limiter.registry().clone(), namespace.to_owned());
    tokio::spawn(async move {
        if is_cached {
            let text = first_text(&redis, &readiness).await;
            remove_other_kinds(&text.unwrap_or_default(), &registry);
        }
        let source = redis.follow();
        let synced = source.synced().await;
        if let Err(error) = &synced {
            tracing::warn!(reason = %with_causes(error), "the registry in Redis cannot be read; trying again");
        }
        if is_cached {
            end_cached(&redis, &registry, &source).await;
        } else if synced.is_err() {
            while source.last_error().is_some() {
                tokio::time::sleep(SUBSCRIPTION_INTERVAL).await;
            }
        }
        if registry.published().is_none() && registry.names().is_empty() {
            tracing::warn!(
                %namespace,
                "Redis has no registry in this namespace: no policy is in force; publish policies, or \
                 check --namespace"
            );
        }
        readiness.policies_received();
    });
}

/// Waits until Redis has a registry, and returns its text; `None` if it cannot be read as a whole.
/// A Redis server that lost its data does not end the limits.
async fn first_text(redis: &RedisRegistry, readiness: &Readiness) -> Option<String> {
    let mut has_warned = false;
    loop {
        match redis.read().await {
            Ok(Some((_, text))) => return Some(text),
            Ok(None) => readiness.policies_received(),
            Err(error @ RegistryError::Store(_)) => {
                if !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!(reason = %with_causes(&error), "the registry in Redis cannot be read; trying again");
                }
            }
            // A text without a revision is rejected as a whole.
            Err(_) => return None,
        }
        tokio::time::sleep(SUBSCRIPTION_INTERVAL).await;
    }
}

/// Removes the cached policies that changed between rate and concurrency since: the registry
/// rejects such a change of a policy in force. Other parts of the text may have errors.
fn remove_other_kinds(text: &str, registry: &PolicyRegistry) {
    let table = text.parse::<Table>().unwrap_or_default();
    let Some(policies) = table.get("policy").and_then(Value::as_table) else {
        return;
    };
    for name in registry.names() {
        let algorithm = policies.get(&name).and_then(|of| of.get("algorithm")?.as_str());
        let cached = registry.get(&name);
        let cached = cached.as_deref().map(|of| of.policy().algorithm_name());
        let is_concurrency = |algorithm: Option<&str>| algorithm == Some("concurrency");
        if algorithm.is_some() && is_concurrency(algorithm) != is_concurrency(cached) {
            registry.remove(&name);
        }
    }
}

/// Removes the cached policies, rules, suspensions and blocks as Redis replaces them.
async fn end_cached(redis: &RedisRegistry, registry: &PolicyRegistry, source: &RedisSubscription) {
    let mut compared = None;
    while registry.published().is_none() || source.last_error().is_some() {
        let published = registry.published();
        if published.is_some()
            && published != compared
            && let Ok(text) = redis.read().await
        {
            remove_replaced(&text.unwrap_or_default().1, registry);
            compared = published;
        }
        tokio::time::sleep(SUBSCRIPTION_INTERVAL).await;
    }
    cache::clear(registry);
}

/// Removes the cached parts that an adopted text in Redis replaces. The text has parts that this
/// version cannot read: their cached versions stay.
fn remove_replaced(text: &str, registry: &PolicyRegistry) {
    let Ok(table) = text.parse::<Table>() else {
        return;
    };
    for name in registry.names() {
        if is_readable(&name, &table) {
            registry.remove(&name);
        }
    }
    // None are never too many.
    if overlay_text::read_from(text).is_ok() {
        let _ = registry.set_overlays([], []);
    }
    let rules = table.get("rule").map(|rules| format!("rule = {rules}\n"));
    if rules.is_none_or(|rules| parse_rules(&rules).is_ok()) {
        let _ = registry.set_rules([]);
    }
}

/// Returns whether this version reads a policy of a text and the quotas of its keys, or the text
/// has no such policy.
fn is_readable(name: &str, text: &Table) -> bool {
    let Some(policy) = text.get("policy").and_then(|of| of.get(name)) else {
        return true;
    };
    let quotas = text.get("override").and_then(Value::as_array);
    let is_own = |quota: &&Value| quota.get("policy").and_then(Value::as_str) == Some(name);
    let quotas: Vec<Value> = quotas.into_iter().flatten().filter(is_own).cloned().collect();
    let mut own = Table::new();
    let policies = Table::from_iter([(name.to_owned(), policy.clone())]);
    own.insert("policy".to_owned(), Value::Table(policies));
    own.insert("override".to_owned(), Value::Array(quotas));
    PolicyRegistry::from_toml(&own.to_string()).is_ok()
}

/// Reads a policy file for a command.
pub(crate) fn read(path: &Path) -> Result<PolicyRegistry, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read the policy file {}: {error}", path.display()))?;
    PolicyRegistry::from_toml(&text).map_err(|error| match &error {
        RegistryError::Parse { errors } => {
            let lines = errors.iter().map(|error| {
                let (line, column) = (error.line(), error.column());
                format!("{}:{line}:{column}: {}", path.display(), error.message())
            });
            lines.collect::<Vec<_>>().join("\n")
        }
        // The reader of texts does not know the name of the file.
        RegistryError::NewerFormat { min_reader, reader, .. } => format!(
            "{}: the text needs a reader of format {min_reader}, and this program reads format {reader}: update the program",
            path.display()
        ),
        _ => with_causes(&error),
    })
}
