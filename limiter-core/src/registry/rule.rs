//! Rules: which policy and which key apply to a request that is described by named values.
//!
//! A gateway receives descriptors, ordered lists of entries such as `route=login,
//! remote_address=1.2.3.4`. A [`Rule`] names the policy for the descriptors that match its
//! patterns. Rules are stored in the registry, so that they are published, versioned and followed
//! together with the policies. Matching is up to the gateway.
//!
//! Invariant: each accepted rule is equal to the rule that is read from its text. Tests:
//! `tests/rules.rs` (`accepted_rules_round_trip`).

use std::fmt;

use crate::error::ConfigError;
use crate::policy::check_text;

/// Maximum length of a pattern in bytes.
const MAX_PATTERN_BYTES: usize = 1_024;
/// Maximum number of patterns of a rule.
const MAX_PATTERNS: usize = 64;
/// The pattern that allows further entries.
const MORE_ENTRIES: &str = "...";

/// The policy for the descriptors of a gateway that match.
///
/// ```
/// use limiter_core::registry::{PolicyRegistry, Rule};
/// use limiter_core::Policy;
///
/// let login = Policy::sliding_window("login").limit(5).window("1m").build()?;
/// let registry = PolicyRegistry::new().with(login);
/// registry.set_rules([Rule::new("login", ["route=login", "remote_address"])?.in_domain("edge")?])?;
///
/// let rules = registry.rules();
/// assert_eq!(rules[0].policy(), "login");
/// assert_eq!(rules[0].patterns()[1].to_string(), "remote_address");
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    domain: Option<Box<str>>,
    patterns: Box<[EntryPattern]>,
    allows_more_entries: bool,
    policy: Box<str>,
    group: Option<Box<str>>,
    shares_prefixes: bool,
    settles: bool,
}

/// The entries of a descriptor that a [`Rule`] accepts at one position.
///
/// The text of a pattern is `key=value` for one value, `key=prefix*` for all values with this
/// prefix, or `key` for all values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryPattern {
    key: Box<str>,
    value: ValuePattern,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ValuePattern {
    Exact(Box<str>),
    Prefix(Box<str>),
    Any,
}

impl EntryPattern {
    fn parse(text: &str) -> Result<Self, ConfigError> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (text, None),
        };
        if key.is_empty() || key == MORE_ENTRIES || text.len() > MAX_PATTERN_BYTES {
            let expected = format!(
                "`key=value`, `key=prefix*` or `key` of at most {MAX_PATTERN_BYTES} bytes, and `...` at the end alone"
            );
            return Err(ConfigError::invalid("match", text, expected));
        }
        let value = match value.map(|value| (value, value.strip_suffix('*'))) {
            None => ValuePattern::Any,
            Some((_, Some(prefix))) => ValuePattern::Prefix(prefix.into()),
            Some((value, None)) => ValuePattern::Exact(value.into()),
        };
        let key = key.into();
        Ok(Self { key, value })
    }

    /// Returns the key of the entry.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the only accepted value, if there is only one.
    #[must_use]
    pub fn exact_value(&self) -> Option<&str> {
        match &self.value {
            ValuePattern::Exact(value) => Some(value),
            ValuePattern::Prefix(_) | ValuePattern::Any => None,
        }
    }

    /// Returns the prefix of the accepted values, for a pattern `key=prefix*`.
    #[must_use]
    pub fn prefix(&self) -> Option<&str> {
        match &self.value {
            ValuePattern::Prefix(prefix) => Some(prefix),
            ValuePattern::Exact(_) | ValuePattern::Any => None,
        }
    }

    /// Returns whether an entry with this key and value is accepted.
    #[must_use]
    pub fn matches(&self, key: &str, value: &str) -> bool {
        key == &*self.key
            && match &self.value {
                ValuePattern::Exact(exact) => value == &**exact,
                ValuePattern::Prefix(prefix) => value.starts_with(&**prefix),
                ValuePattern::Any => true,
            }
    }
}

/// Formats the text from which the pattern is parsed.
impl fmt::Display for EntryPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        match &self.value {
            ValuePattern::Exact(value) => write!(f, "={value}"),
            ValuePattern::Prefix(prefix) => write!(f, "={prefix}*"),
            ValuePattern::Any => Ok(()),
        }
    }
}

impl Rule {
    /// Creates a rule for descriptors whose entries match these patterns, in order, in any domain.
    /// Further entries are accepted if the last pattern is `...`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for a malformed pattern, no pattern, more than 64 patterns, and a
    /// policy name that is empty or longer than 256 bytes.
    pub fn new<P: AsRef<str>>(
        policy: impl Into<String>,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<Self, ConfigError> {
        let policy: String = policy.into();
        check_text("policy", &policy)?;
        let mut parsed = Vec::new();
        let mut allows_more_entries = false;
        for pattern in patterns {
            let pattern = pattern.as_ref();
            if allows_more_entries {
                let expected = "no pattern after `...`";
                return Err(ConfigError::invalid("match", pattern, expected));
            }
            match pattern {
                MORE_ENTRIES => allows_more_entries = true,
                _ => parsed.push(EntryPattern::parse(pattern)?),
            }
        }
        let count = parsed.len() + usize::from(allows_more_entries);
        if count == 0 || count > MAX_PATTERNS {
            let expected = format!("1 to {MAX_PATTERNS} patterns");
            return Err(ConfigError::invalid("match", count, expected));
        }
        Ok(Self {
            domain: None,
            patterns: parsed.into(),
            allows_more_entries,
            policy: policy.into(),
            group: None,
            shares_prefixes: false,
            settles: false,
        })
    }

    /// Restricts the rule to the requests of one domain. Default: any domain.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for a domain that is empty or longer than 256 bytes.
    pub fn in_domain(self, domain: impl Into<String>) -> Result<Self, ConfigError> {
        let domain: String = domain.into();
        check_text("domain", &domain)?;
        Ok(Self {
            domain: Some(domain.into()),
            ..self
        })
    }

    /// Sets the group of the rule's keys. Limits of one request that have one group are decided
    /// atomically. Default: the group of the policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for a group that is empty or longer than 256 bytes.
    pub fn in_group(self, group: impl Into<String>) -> Result<Self, ConfigError> {
        let group: String = group.into();
        check_text("group", &group)?;
        Ok(Self {
            group: Some(group.into()),
            ..self
        })
    }

    /// Uses one key for all values of a prefix. Default: each value has a key of its own.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] when no pattern is a prefix.
    pub fn share_prefixes(self) -> Result<Self, ConfigError> {
        if self.patterns.iter().all(|pattern| pattern.prefix().is_none()) {
            let expected = "a pattern `key=prefix*` in `match`";
            return Err(ConfigError::invalid("share", true, expected));
        }
        Ok(Self {
            shares_prefixes: true,
            ..self
        })
    }

    /// Charges the cost also beyond the capacity, as a debt that delays later calls: for costs that
    /// are reported after the response. Default: a cost above the remaining permits is denied.
    #[must_use]
    pub fn settle(self) -> Self {
        Self {
            settles: true,
            ..self
        }
    }

    /// Returns the domain; `None` for any domain.
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    /// Returns the patterns of the entries, in order, without `...`.
    #[must_use]
    pub fn patterns(&self) -> &[EntryPattern] {
        &self.patterns
    }

    /// Returns whether the descriptor may have further entries.
    #[must_use]
    pub fn allows_more_entries(&self) -> bool {
        self.allows_more_entries
    }

    /// Returns the name of the policy.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the group of the keys, if the rule sets one.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// Returns whether all values of a prefix share one key.
    #[must_use]
    pub fn shares_prefixes(&self) -> bool {
        self.shares_prefixes
    }

    /// Returns whether costs are charged beyond the capacity.
    #[must_use]
    pub fn settles(&self) -> bool {
        self.settles
    }
}
