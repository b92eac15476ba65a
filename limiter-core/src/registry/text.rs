//! The registry as TOML text: one table per policy, and one per key override.
//!
//! A text is rejected with all of its errors, each with its position and the expected value. The
//! subscription of Redis is lenient: it ignores unknown fields with a warning, and rejects single
//! policies (`report.rs`). Tests: `tests/registry/text.rs`, `tests/registry_redis.rs`.

#[cfg(feature = "serde")]
mod deserialize;
mod fields;
mod inheritance;
mod metadata;
mod overlay;
mod parse_error;
mod policy_spec;
mod read;
mod report;
mod rfc3339;
mod rule;
mod syntax;
mod values;
mod write;

use toml::de::DeTable;

use crate::error::ConfigError;
pub use crate::registry::text::parse_error::{ParseError, RegistryError};
use crate::registry::text::read::{read, read_format};
use crate::registry::text::report::ErrorReport;
pub(crate) use crate::registry::text::report::Findings;
use crate::registry::{PolicyRegistry, SourceSnapshot};

/// Maximum length of a text. It is several times the size of the maximum number of key overrides.
pub(crate) const MAX_TEXT_BYTES: usize = 4 << 20;
/// For a longer text only the first syntax error is reported, because the parser keeps the
/// recovered document in memory.
const MAX_RECOVERED_BYTES: usize = 64 << 10;
/// The highest revision: numbers in Lua are inexact above it.
pub(crate) const MAX_REVISION: u64 = (1 << 53) - 1;
const MAX_REVISION_DIGITS: usize = 16;
/// The format that this version writes, and the highest that it reads. It is raised when a reader
/// that ignores the new fields would make other decisions.
const FORMAT: u32 = STARTS_FORMAT;
/// The lowest format that a reader must know to enforce a text without overlays.
const FIRST_FORMAT: u32 = 1;
/// The first format with overlays and with entries of key lists that end.
pub(crate) const OVERLAYS_FORMAT: u32 = 2;
/// The first format with suspensions that start later.
const STARTS_FORMAT: u32 = 3;

/// Registries as text (feature `registry`).
///
/// ```toml
/// [policy.search]
/// algorithm = "token_bucket"       # or funnel
/// capacity = 20
/// rate = "10/s"
/// deadline = "20ms"                # this and the following fields are optional
/// on_store_failure = "local"       # fail_open, fail_closed, error
/// lease = "1s"
/// group = "all"
/// apps = ["checkout", "mobile"]
/// key = ["tenant", "user"]         # names of the parts of keys, for people
/// enforcement = "shadow"           # enforce, off
/// on_denial = "wait 500ms"         # reject, degrade
/// allow_keys = ["10.0.0.0/8", "user:1"]
/// deny_keys = ["203.0.113.*"]
/// until = 2030-01-01T00:00:00Z
/// rate_type = "per_client"         # or overall: for limiter_redisson::RateLimiter
/// created_by = "ann"               # and updated_by, note; created_at and updated_at are times as `until`
/// generation = 3                   # a higher number deletes all usage
///                                  # scaled: the previous quota and the time of a proportional change; not for an exact window
/// scaled = { capacity = 10, rate = "5/s", at = 2026-11-22T10:00:00Z }
/// trial = { capacity = 30, rate = "15/s", until = 2030-01-01T00:00:00Z } # decided and counted only
///
/// [policy."mail out"]
/// algorithm = "sliding_window"     # or counter_window
/// limit = 100
/// window = "1m"
/// penalty = "10 in 1m: 15m"        # after 10 denials in a minute, 15 minutes
///
/// [policy.monthly]
/// algorithm = "fixed_window"
/// limit = 10_000
/// window = "month"
/// align = "+02:00"                 # without it, a period starts at the first use (a month needs it)
///
/// [policy."paced calls"]
/// algorithm = "funnel"
/// capacity = 10
/// rate = "2/s"
/// paced = true
///
/// [policy.export]
/// algorithm = "concurrency"
/// max = 4
/// lease = "30s"
///
/// [[override]]                     # a key's own quota
/// policy = "search"
/// key = "user:7"                   # or escaped_key, as in Redis; also group or escaped_group
/// capacity = 100
/// rate = "50/s"
/// until = 2030-01-01T00:00:00Z
///
/// [[rule]]                         # for gateways: the policy of descriptors; the first match applies
/// domain = "edge"                  # without it, any domain
/// match = ["route=login", "remote_address"]  # key=value, key=prefix* or key, in order; "..." at the end: further entries
/// policy = "mail out"              # the values of entries without a value in `match` form the key
/// group = "edge"                   # limits of one request with one group are decided atomically
/// share = false                    # one key for all values of a prefix
/// settle = false                   # charge beyond the capacity
///
/// [[suspend]]                      # another enforcement for some time: see `suspend`
/// scope = "policy:search"          # or app:NAME, all
/// enforcement = "off"              # or shadow, deny
/// from = 2029-12-31T00:00:00Z      # without it, at once
/// until = 2030-01-01T00:00:00Z
/// by = "ann"                       # this and the following field are optional
/// reason = "false denials"
///
/// [[block]]                        # keys that all policies deny: see `block`
/// part = "tenant=acme"             # or key = "user:7", network = "10.0.0.0/8"
/// app = "checkout"                 # this and the following fields are optional
/// until = 2030-01-01T00:00:00Z
/// by = "ann"
/// reason = "abuse"
/// ```
///
/// The defaults of missing fields and the valid values are those of
/// [`PolicyBuilder`](crate::PolicyBuilder).
///
/// # Versions of the text
///
/// A text may begin with `format`, the version of its format, and `min_reader`, the lowest version
/// that a reader must know to enforce the text. Both default to 1, and
/// [`to_toml`](PolicyRegistry::to_toml) writes them: `min_reader` is 3 if the text contains a
/// suspension with `from`, 2 if it contains other suspensions, blocks or entries of key lists that
/// end, and 1 otherwise. A reader whose
/// [`FORMAT`](PolicyRegistry::FORMAT) is lower than `min_reader` rejects the text with
/// [`RegistryError::NewerFormat`] and keeps its last policies.
///
/// An unknown field is an error in [`from_toml`](PolicyRegistry::from_toml), in files, and in
/// published texts, since it is usually a typing error. The subscription of the text in Redis,
/// which a newer program may have published, ignores such a field and logs a warning. A policy that
/// the subscription cannot read keeps its previous version, with its key overrides, and the other
/// policies of the text apply. If the subscription cannot read one of the rules, all rules keep
/// their previous version, because their order decides.
impl PolicyRegistry {
    /// The version of the text format that this program writes, and the highest that it reads.
    pub const FORMAT: u32 = FORMAT;

    /// Creates a registry from a text, with its policies as policies of code.
    ///
    /// ```
    /// use limiter_core::registry::PolicyRegistry;
    ///
    /// let registry = PolicyRegistry::from_toml("
    ///     [policy.search]
    ///     algorithm = 'token_bucket'
    ///     capacity = 20
    ///     rate = '10/s'
    /// ")?;
    /// assert_eq!(registry.get("search").unwrap().policy().quota().whole(), 20);
    ///
    /// let refused = PolicyRegistry::from_toml("policy.search = { algorithm = 'funnel', capacity = 0, rate = '10' }");
    /// assert_eq!(
    ///     refused.unwrap_err().to_string(),
    ///     "text:1:52: policy.search.capacity is 0, expected more than zero and at most 4503599627370.496\n\
    ///      text:1:62: policy.search.rate is '10', expected permits per time, such as 10/s, 100/min, 7/3s or 1/30d",
    /// );
    /// # Ok::<(), limiter_core::registry::RegistryError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RegistryError::Parse`] with all unknown, malformed, out-of-range and missing fields.
    pub fn from_toml(text: &str) -> Result<Self, RegistryError> {
        let snapshot = parse("text", text)?;
        let registry = Self::new();
        registry.adopt(&crate::registry::Source::Code, snapshot);
        Ok(registry)
    }

    /// Formats the effective policies of all sources as text. Reading the text returns an equal
    /// registry, except for durations with fractions of a microsecond, which are rounded up, and
    /// ends after the year 9999. If several sources suspend one scope, the text contains the
    /// suspension that is active by the system's clock.
    #[must_use]
    pub fn to_toml(&self) -> String {
        write::text_of(&self.as_snapshot())
    }
}

/// Formats a snapshot as text.
#[cfg(feature = "redis")]
pub(super) fn write(snapshot: &SourceSnapshot) -> String {
    write::text_of(snapshot)
}

/// Reads a text strictly; `place` is its name in error messages.
pub(crate) fn parse(place: &str, text: &str) -> Result<SourceSnapshot, RegistryError> {
    let (snapshot, _) = parse_with(ErrorReport::strict(place, text), place, text)?;
    Ok(snapshot)
}

/// Reads a text that another program published: unknown fields are warnings, and policies that
/// cannot be read are not in the snapshot.
#[cfg(feature = "redis")]
pub(crate) fn parse_published(place: &str, text: &str) -> Result<(SourceSnapshot, Findings), RegistryError> {
    let (mut snapshot, findings) = parse_with(ErrorReport::lenient(place, text), place, text)?;
    if findings.rejects_rules {
        snapshot.rules = std::sync::Arc::default();
    }
    for name in &findings.rejected {
        snapshot.remove(name);
    }
    Ok((snapshot, findings))
}

fn parse_with(
    mut report: ErrorReport<'_>,
    place: &str,
    text: &str,
) -> Result<(SourceSnapshot, Findings), RegistryError> {
    let length = without_revision(text).len();
    if length > MAX_TEXT_BYTES {
        let message = format!("the text has {length} bytes, expected at most {MAX_TEXT_BYTES}");
        return Err(RegistryError::single(place, &message));
    }
    let document = match DeTable::parse(text) {
        Ok(document) => document,
        Err(first) => {
            let all = match text.len() {
                0..=MAX_RECOVERED_BYTES => DeTable::parse_recoverable(text).1,
                _ => vec![first],
            };
            syntax::report(&mut report, text, &all);
            report.finish()?;
            return Err(RegistryError::single(place, "the text is not TOML"));
        }
    };
    let min_reader = read_format(document.get_ref());
    if min_reader > FORMAT {
        // Other errors of a text in a newer format are not reported.
        return Err(RegistryError::NewerFormat {
            place: place.to_owned(),
            min_reader,
            reader: FORMAT,
        });
    }
    let snapshot = read(&mut report, document.get_ref());
    report.finish().map(|findings| (snapshot, findings))
}

/// Reads a text as subscribers will read it after publication, when it follows a line with its
/// revision. Errors contain the positions in the given text.
#[cfg(feature = "redis")]
pub(crate) fn parse_numbered(place: &str, text: &str) -> Result<SourceSnapshot, RegistryError> {
    let rest = without_revision(text);
    let lines_before = usize::from(rest.len() == text.len());
    parse(place, &format!("revision = 1\n{rest}")).map_err(|error| error.shift_lines_up(lines_before))
}

/// Fails for a text that subscribers will reject as a whole after its publication.
#[cfg(feature = "redis")]
pub(crate) fn check_published(place: &str, text: &str) -> Result<(), RegistryError> {
    let rest = without_revision(text);
    let lines_before = usize::from(rest.len() == text.len());
    let parsed = parse_published(place, &format!("revision = 1\n{rest}"));
    parsed
        .map(drop)
        .map_err(|error| error.shift_lines_up(lines_before))
}

/// Returns a text without its first line, if that line contains the revision.
pub(crate) fn without_revision(text: &str) -> &str {
    match text.split_once('\n') {
        Some((line, rest)) if is_revision(line) => rest,
        None if is_revision(text) => "",
        _ => text,
    }
}

/// The script `registry.lua` recognizes the same lines.
fn is_revision(line: &str) -> bool {
    let line = line.strip_suffix('\r').unwrap_or(line);
    let digits = line.strip_prefix("revision = ").unwrap_or_default();
    (1..=MAX_REVISION_DIGITS).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits.parse().is_ok_and(|revision: u64| revision <= MAX_REVISION)
}

/// Reads a text and rejects it if it contains no policy, since an empty file may be one that is
/// being written.
pub(crate) fn parse_some(place: &str, text: &str) -> Result<SourceSnapshot, RegistryError> {
    let snapshot = parse(place, text)?;
    if snapshot.entries().next().is_none() {
        return Err(RegistryError::single(place, "no policy, expected at least one"));
    }
    Ok(snapshot)
}

/// Returns the expected value of a configuration error.
fn expected(error: &ConfigError) -> String {
    match error {
        ConfigError::Invalid { expected, .. } => expected.clone(),
        other => other.to_string(),
    }
}
