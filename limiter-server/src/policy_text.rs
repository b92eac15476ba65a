//! One policy of a registry as text: its table and the quotas of its keys.
//!
//! The control plane stores and edits single policies, and publishes all of them as one registry.
//! A text is stored in the form in which the library writes it, so that equal policies have equal
//! texts. Tests: below.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::registry::{KeyOverride, PolicyEntry, PolicyMetadata, PolicyRegistry, RegistryError, Rule};
use limiter_core::{ConfigError, Inheritance, Timestamp};

/// The longest name in bytes that all databases store.
const MAX_NAME_BYTES: usize = 255;
/// The longest text in bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// A policy with the quotas of its keys.
#[derive(Clone, Debug)]
pub struct PolicyText {
    entry: Arc<PolicyEntry>,
    overrides: Vec<Arc<KeyOverride>>,
}

/// The reason for a text that is not one policy.
#[derive(Clone, Debug)]
pub enum TextError {
    /// The text has errors.
    Registry(RegistryError),
    /// The text is valid, and cannot be stored under this name.
    Unsuitable(String),
}

impl PolicyText {
    /// Parses a text that defines the policy of this name and no other.
    ///
    /// # Errors
    ///
    /// [`TextError`] with all errors of the text.
    pub fn parse(name: &str, text: &str) -> Result<Self, TextError> {
        Self::require_length(text)?;
        Self::parse_stored(name, text)
    }

    /// As [`parse`](Self::parse), for a text of any length: an import can have stored a longer one.
    ///
    /// # Errors
    ///
    /// [`TextError`] with all errors of the text.
    pub fn parse_stored(name: &str, text: &str) -> Result<Self, TextError> {
        let registry = PolicyRegistry::from_toml(text).map_err(TextError::Registry)?;
        let names = registry.names();
        if names.as_slice() != [name] {
            let reason = format!("the text defines the policies {names:?}, expected [policy.{name:?}] alone");
            return Err(TextError::Unsuitable(reason));
        }
        if !registry.rules().is_empty() {
            let reason = "the text contains rules, which are stored separately".to_owned();
            return Err(TextError::Unsuitable(reason));
        }
        if !(registry.suspensions().is_empty() && registry.blocks().is_empty()) {
            let reason = "the text contains suspensions or blocks, which are stored separately".to_owned();
            return Err(TextError::Unsuitable(reason));
        }
        Self::of(&registry, name).ok_or_else(|| TextError::Unsuitable("the text has no policy".to_owned()))
    }

    /// Fails for a text that is longer than a stored one.
    ///
    /// # Errors
    ///
    /// [`TextError::Unsuitable`] with the length.
    pub fn require_length(text: &str) -> Result<(), TextError> {
        match text.len() > MAX_TEXT_BYTES {
            false => Ok(()),
            true => Err(TextError::Unsuitable(format!(
                "the text has {} bytes, expected at most {MAX_TEXT_BYTES}",
                text.len()
            ))),
        }
    }

    /// Returns the policy of a name in a registry.
    #[must_use]
    pub fn of(registry: &PolicyRegistry, name: &str) -> Option<Self> {
        if name.len() > MAX_NAME_BYTES {
            return None;
        }
        Some(Self {
            entry: registry.get(name)?,
            overrides: registry.overrides(name),
        })
    }

    /// Returns the policy with its apps, end and notes.
    #[must_use]
    pub fn entry(&self) -> &PolicyEntry {
        &self.entry
    }

    /// Returns the quotas of single keys.
    #[must_use]
    pub fn overrides(&self) -> &[Arc<KeyOverride>] {
        &self.overrides
    }

    /// Returns the name of the policy.
    #[must_use]
    pub fn name(&self) -> &str {
        self.entry.policy().name()
    }

    /// Returns the apps for which the policy is; `None` for all.
    #[must_use]
    pub fn apps(&self) -> Option<Vec<String>> {
        self.entry.apps().map(|apps| apps.map(str::to_owned).collect())
    }

    /// Returns the text.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let registry = PolicyRegistry::new();
        // Both were read from a registry, where they fit.
        let _ = self.put_into(&registry);
        registry.to_toml()
    }

    /// Returns the text without authors, times and note. Texts with the same content decide
    /// equally.
    #[must_use]
    pub fn content(&self) -> String {
        self.with_metadata(PolicyMetadata::new()).to_toml()
    }

    /// Puts the policy and the quotas of its keys into a registry, in place of those of its name.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when the registry has the largest number of quotas.
    pub fn put_into(&self, registry: &PolicyRegistry) -> Result<(), ConfigError> {
        for own in registry.overrides(self.name()) {
            registry.remove_override(self.name(), own.key().clone());
        }
        registry.set((*self.entry).clone());
        for own in &self.overrides {
            registry.set_override((**own).clone())?;
        }
        Ok(())
    }

    /// Returns the policy with the quotas of another version.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a quota is of another kind of limit than this policy.
    pub fn with_overrides_of(&self, other: &Self) -> Result<Self, ConfigError> {
        let text = Self {
            entry: Arc::clone(&self.entry),
            overrides: other.overrides.clone(),
        };
        text.put_into(&PolicyRegistry::new())?;
        Ok(text)
    }

    /// Returns the policy without the quotas that ended until a time.
    #[must_use]
    pub fn without_overrides_until(&self, time: Timestamp) -> Self {
        let is_kept = |own: &&Arc<KeyOverride>| own.end().is_none_or(|end| end > time);
        Self {
            entry: Arc::clone(&self.entry),
            overrides: self.overrides.iter().filter(is_kept).cloned().collect(),
        }
    }

    /// Returns whether another text, saved in place of this one, would change only notes.
    #[must_use]
    pub fn has_content_of(&self, new: &Self) -> bool {
        let saved = new.replacing(self, Inheritance::AsIs, Timestamp::from_micros(0));
        saved.is_ok_and(|saved| saved.content() == self.content())
    }

    /// Returns the policy with other notes.
    #[must_use]
    pub fn with_metadata(&self, metadata: PolicyMetadata) -> Self {
        Self {
            entry: Arc::new((*self.entry).clone().with_metadata(metadata)),
            overrides: self.overrides.clone(),
        }
    }

    /// Returns the policy in place of a previous one, with the state of keys as `inheritance`
    /// states.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a rate limit would replace a concurrency limit or the reverse, and when
    /// the states cannot be converted.
    pub fn replacing(
        &self,
        before: &Self,
        inheritance: Inheritance,
        at: Timestamp,
    ) -> Result<Self, ConfigError> {
        let registry = PolicyRegistry::new();
        // An ended entry is no policy in force, and its kind may change.
        let previous = (*before.entry).clone().without_end();
        let kinds = [before, self].map(|text| text.entry.policy().algorithm_name() == "concurrency");
        if !(before.is_ended_at(at) && kinds[0] != kinds[1]) {
            registry.set(previous);
        }
        registry.change_at((*self.entry).clone(), inheritance, at)?;
        let entry = registry
            .get(self.name())
            .unwrap_or_else(|| Arc::clone(&self.entry));
        Ok(Self {
            entry,
            overrides: self.overrides.clone(),
        })
    }

    /// Returns the policy that ended at a time, without quotas, key lists and trial values: it
    /// hides policies of this name in other sources. The registry keeps it without end.
    #[must_use]
    pub fn tombstone(&self, at: Timestamp) -> Self {
        let entry = self.without_lists().unwrap_or_else(|| Arc::clone(&self.entry));
        Self {
            entry: Arc::new((*entry).clone().until(at)),
            overrides: Vec::new(),
        }
    }

    /// Returns the policy without key lists and trial values.
    fn without_lists(&self) -> Option<Arc<PolicyEntry>> {
        let registry = PolicyRegistry::new();
        registry.set((*self.entry).clone());
        let mut text: toml::Table = registry.to_toml().parse().ok()?;
        let policy = text.get_mut("policy")?.get_mut(self.name())?.as_table_mut()?;
        for field in ["allow_keys", "deny_keys", "trial"] {
            policy.remove(field);
        }
        PolicyRegistry::from_toml(&text.to_string())
            .ok()?
            .get(self.name())
    }

    /// Returns whether the policy has ended.
    #[must_use]
    pub fn is_ended_at(&self, now: Timestamp) -> bool {
        self.entry.end().is_some_and(|end| end <= now)
    }

    /// Returns whether the policy differs from another one only in capacity, rate, window, quotas
    /// of keys and notes.
    #[must_use]
    pub fn differs_in_numbers_only(&self, other: &Self) -> bool {
        let (new, old) = (&self.entry, &other.entry);
        if new.policy().algorithm_name() != old.policy().algorithm_name() {
            return false;
        }
        // Another generation discards the usage of all keys.
        let generation = old.policy().generation();
        if new.policy().generation() != generation {
            return false;
        }
        let renumbered = old.policy().with_numbers_of(new.policy());
        let expected = (**old)
            .clone()
            .with_policy(renumbered.with_generation(generation))
            .with_metadata(new.metadata().clone());
        let given = new.policy().clone().with_generation(generation);
        expected == (**new).clone().with_policy(given)
    }
}

/// Returns the average rate of a quota per window, in thousandths of a permit per hour.
#[must_use]
pub fn hourly_rate(policy: &limiter_core::Policy) -> u128 {
    const HOUR: Duration = Duration::from_secs(3_600);
    let window = policy.window().as_micros().max(1);
    policy.quota().as_thousandths() * HOUR.as_micros() / window
}

/// Rules as text.
///
/// # Errors
///
/// [`ConfigError`] for too many rules.
pub fn rules_to_toml(rules: &[Rule]) -> Result<String, ConfigError> {
    let registry = PolicyRegistry::new();
    registry.set_rules(rules.iter().cloned())?;
    Ok(registry.to_toml())
}

/// Parses a text that contains rules and no policy.
///
/// # Errors
///
/// [`TextError`] with all errors of the text.
pub fn parse_rules(text: &str) -> Result<Arc<[Rule]>, TextError> {
    let registry = PolicyRegistry::from_toml(&with_placeholders(text)?).map_err(TextError::Registry)?;
    Ok(registry.rules())
}

/// Adds a policy for each name in the rules, since a registry rejects rules without their policies.
fn with_placeholders(text: &str) -> Result<String, TextError> {
    let Ok(table) = text.parse::<toml::Table>() else {
        // The registry reports the errors.
        return Ok(text.to_owned());
    };
    if table.contains_key("policy") {
        let reason = "the text contains policies, which are stored separately".to_owned();
        return Err(TextError::Unsuitable(reason));
    }
    let rules = table.get("rule").and_then(toml::Value::as_array);
    let names: std::collections::BTreeSet<&str> = rules
        .into_iter()
        .flatten()
        .filter_map(|rule| rule.get("policy")?.as_str())
        .collect();
    let mut completed = text.to_owned();
    for name in names {
        // Strings of JSON without control characters are strings of TOML.
        let name = serde_json::Value::from(name);
        completed.push_str(&format!(
            "\n[policy.{name}]\nalgorithm = \"sliding_window\"\nlimit = 1\nwindow = \"1s\"\n"
        ));
    }
    Ok(completed)
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registry(error) => error.fmt(f),
            Self::Unsuitable(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for TextError {}

#[cfg(test)]
mod tests {
    use super::*;

    const SEARCH: &str = "
[policy.search]
algorithm = 'token_bucket'
capacity = 20
rate = '10/s'
apps = ['checkout']
note = 'a note'

[[override]]
policy = 'search'
key = 'ann'
capacity = 50
rate = '10/s'
";

    fn parse(text: &str) -> PolicyText {
        PolicyText::parse("search", text).unwrap()
    }

    #[test]
    fn text_is_written_as_it_is_read() {
        let text = parse(SEARCH);
        assert_eq!(text.apps(), Some(vec!["checkout".to_owned()]));
        assert_eq!(parse(&text.to_toml()).to_toml(), text.to_toml());
        assert!(text.to_toml().contains("a note"));
        assert!(!text.content().contains("a note"));
        assert_eq!(text.overrides().len(), 1);
    }

    #[test]
    fn text_of_another_policy_is_rejected() {
        let error = PolicyText::parse("other", SEARCH).unwrap_err();
        assert!(error.to_string().contains("search"), "{error}");
        assert!(PolicyText::parse("search", "x = 1").is_err());
    }

    #[test]
    fn changes_of_numbers_are_distinguished_from_other_changes() {
        let text = parse(SEARCH);
        for (from, to, numbers_only) in [
            ("capacity = 20", "capacity = 30", true),
            ("rate = '10/s'", "rate = '11/s'", true),
            ("key = 'ann'", "key = 'bob'", true),
            ("a note", "another note", true),
            ("apps = ['checkout']", "apps = ['checkout', 'mobile']", false),
            ("token_bucket", "funnel", false),
            ("note =", "deadline = '5ms'\nnote =", false),
            ("note =", "enforcement = 'off'\nnote =", false),
            ("note =", "generation = 7\nnote =", false),
        ] {
            let changed = parse(&SEARCH.replace(from, to));
            assert_eq!(changed.differs_in_numbers_only(&text), numbers_only, "{to}");
        }
    }

    #[test]
    fn quotas_of_another_kind_of_limit_are_an_error() {
        let text = parse(SEARCH);
        let alone = |algorithm: &str| parse(&format!("[policy.search]\n{algorithm}"));
        let bucket = alone("algorithm = 'token_bucket'\ncapacity = 9\nrate = '1/s'");
        assert_eq!(bucket.with_overrides_of(&text).unwrap().overrides().len(), 1);
        let window = alone("algorithm = 'sliding_window'\nlimit = 9\nwindow = '1m'");
        let error = window.with_overrides_of(&text).unwrap_err().to_string();
        assert!(error.contains("override"), "{error}");
    }

    #[test]
    fn rules_are_parsed_without_their_policies() {
        let text = "[[rule]]\nmatch = ['route=a']\npolicy = 'a b'\n";
        let rules = parse_rules(text).unwrap();
        assert_eq!(rules.len(), 1);
        let written = rules_to_toml(&rules).unwrap();
        assert_eq!(parse_rules(&written).unwrap(), rules);
        assert!(parse_rules("").unwrap().is_empty());
        assert!(parse_rules(SEARCH).is_err());
        assert!(parse_rules("[[rule]]\nmatch = []\npolicy = 'a'\n").is_err());
    }

    #[test]
    fn tombstone_ends_the_policy_and_its_quotas() {
        let tombstone = parse(SEARCH).tombstone(Timestamp::from_micros(5));
        assert!(tombstone.is_ended_at(Timestamp::from_micros(5)));
        assert!(!tombstone.is_ended_at(Timestamp::from_micros(4)));
        assert!(tombstone.overrides().is_empty());
    }

    #[test]
    fn hourly_rate_compares_all_algorithms() {
        assert_eq!(hourly_rate(parse(SEARCH).entry().policy()), 36_000_000);
    }

    #[test]
    fn reset_raises_the_generation() {
        let (before, at) = (parse(SEARCH), Timestamp::from_micros(1));
        let after = parse(SEARCH).replacing(&before, Inheritance::Reset, at).unwrap();
        assert_eq!(after.entry().policy().generation(), 1);
        let kept = parse(SEARCH).replacing(&after, Inheritance::AsIs, at).unwrap();
        assert_eq!(kept.entry().policy().generation(), 1);
    }
}
