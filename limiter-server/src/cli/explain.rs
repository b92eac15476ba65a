//! `limiter-server explain`: the rule, policy and key of a descriptor.
//!
//! Tests: `tests/commands.rs` (`explain_prints_rule_policy_key_and_values`).

use std::path::PathBuf;

use clap::Args;
use limiter_core::registry::PolicyRegistry;

use crate::cli::print_text;
use crate::error_text::with_causes;
use crate::gateway::rules::RuleSet;
use crate::serve::{limits, policies};
use crate::settings::{StoreArgs, StoreSettings};

/// The source of the policies and rules.
#[derive(Args, Debug)]
pub(super) struct RegistrySource {
    /// The policy file.
    #[arg(long, value_name = "FILE", env = "LIMITER_POLICIES")]
    policies: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
}

impl RegistrySource {
    /// Reads the policies and rules: the registry and its origin.
    fn read(&self) -> Result<(PolicyRegistry, String), String> {
        if let Some(file) = &self.policies {
            return Ok((policies::read(file)?, file.display().to_string()));
        }
        let (revision, text) = read_text(&self.store).map_err(|reason| match self.store.resolve() {
            Ok(StoreSettings::InProcess { .. }) => {
                "no policies: set --policies, --redis or --redis-file".to_owned()
            }
            _ => reason,
        })?;
        let registry = PolicyRegistry::from_toml(&text).map_err(|error| with_causes(&error))?;
        Ok((registry, format!("revision {revision} in Redis")))
    }
}

/// Returns the registry in Redis: its revision and its text.
pub(super) fn read_text(store: &StoreArgs) -> Result<(u64, String), String> {
    let settings = store.resolve().map_err(|error| error.to_string())?;
    let StoreSettings::Redis { namespace, .. } = &settings else {
        return Err("no Redis: set --redis, --redis-cluster, --redis-sentinel or --redis-file".to_owned());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(read_redis(&settings, namespace))
}

async fn read_redis(settings: &StoreSettings, namespace: &str) -> Result<(u64, String), String> {
    let limiter = limits::build(settings, &PolicyRegistry::new())?;
    let redis = limiter.redis_registry().map_err(|error| error.to_string())?;
    let read = redis.read().await.map_err(|error| with_causes(&error))?;
    read.ok_or_else(|| {
        format!(
            "the namespace {namespace} of Redis has no registry, expected that of the server in --namespace"
        )
    })
}

/// Prints the limit of a descriptor.
pub(super) fn run(source: &RegistrySource, domain: &str, entries: &[(String, String)]) -> Result<(), String> {
    let (registry, origin) = source.read()?;
    let rules = RuleSet::new(registry.rules());
    let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    let Some(found) = rules.find(domain, &entries) else {
        return Err(format!(
            "no rule of {origin} matches the descriptor; add a rule, or check the order of the entries"
        ));
    };
    let rule = match found.rule {
        None => "none, the default mapping applies".to_owned(),
        Some(rule) => {
            let number = rules.rules().iter().position(|of| of == rule).unwrap_or_default();
            let patterns: Vec<String> = rule.patterns().iter().map(ToString::to_string).collect();
            let more = if rule.allows_more_entries() { ", ..." } else { "" };
            format!("rule[{number}], match {}{more}", patterns.join(", "))
        }
    };
    let (key, values) = (found.values.join(":"), &found.values);
    print_text(&format!("rule: {rule}\nkey: {key}\nvalues: {values:?}\n"))?;
    let group = found.rule.and_then(|rule| rule.group());
    match registry.get(&found.policy) {
        None => Err(format!("policy: {}, which is not configured", found.policy)),
        Some(entry) => {
            let atomic = match group.or(entry.policy().group()) {
                Some(group) => format!("with the limits of group {group}"),
                None => "with limits of the same key; others are decided in order".to_owned(),
            };
            print_text(&format!("policy: {}\natomic: {atomic}\n", entry.policy()))
        }
    }
}

/// Parses `key=value`.
pub(super) fn parse_entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no entry, expected key=value")),
    }
}
