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
use limiter_core::registry::{FileSource, PolicyRegistry, RedisRegistry, RegistryError};

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
            remove_other_kinds(&redis, &registry).await;
        }
        let source = redis.follow();
        if let Err(error) = source.synced().await {
            tracing::warn!(reason = %with_causes(&error), "the registry in Redis cannot be read; trying again");
            let mut compared = None;
            while source.last_error().is_some() {
                let published = registry.published();
                if is_cached && published != compared && remove_absent(&redis, &registry).await.is_ok() {
                    compared = published;
                }
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
        if is_cached {
            // A Redis server that lost its data does not end the limits.
            while registry.published().is_none() || source.last_error().is_some() {
                tokio::time::sleep(SUBSCRIPTION_INTERVAL).await;
            }
            cache::clear(&registry);
        }
    });
}

/// Removes the cached policies that changed between rate and concurrency since, as soon as Redis
/// answers: the registry rejects such a change of a policy in force.
async fn remove_other_kinds(redis: &RedisRegistry, registry: &PolicyRegistry) {
    let text = loop {
        match redis.read().await {
            Ok(Some((_, text))) => break text,
            Err(RegistryError::Store(_)) => tokio::time::sleep(SUBSCRIPTION_INTERVAL).await,
            // A text without a revision is rejected as a whole.
            Ok(None) | Err(_) => return,
        }
    };
    let Ok(found) = PolicyRegistry::from_toml(&text) else {
        return;
    };
    let is_concurrency = |of: &PolicyRegistry, name: &str| {
        let entry = of.get(name)?;
        Some(entry.policy().algorithm_name() == "concurrency")
    };
    for name in registry.names() {
        let (cached, new) = (is_concurrency(registry, &name), is_concurrency(&found, &name));
        if new.is_some() && new != cached {
            registry.remove(&name);
        }
    }
}

/// Removes the cached policies that the adopted text in Redis does not contain, and the cached
/// rules, suspensions and blocks. The text has parts that this version cannot read: their cached
/// versions stay.
async fn remove_absent(redis: &RedisRegistry, registry: &PolicyRegistry) -> Result<(), RegistryError> {
    if registry.published().is_none() {
        return Ok(());
    }
    let (_, text) = redis.read().await?.unwrap_or_default();
    let Ok(table) = text.parse::<toml::Table>() else {
        return Ok(());
    };
    let policies = table.get("policy").and_then(toml::Value::as_table);
    for name in registry.names() {
        if policies.is_none_or(|of| !of.contains_key(&name)) {
            registry.remove(&name);
        }
    }
    // None are never too many.
    if overlay_text::read_from(&text).is_ok() {
        let _ = registry.set_overlays([], []);
    }
    let rules = table.get("rule").map(|rules| format!("rule = {rules}\n"));
    if rules.is_none_or(|rules| parse_rules(&rules).is_ok()) {
        let _ = registry.set_rules([]);
    }
    Ok(())
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
