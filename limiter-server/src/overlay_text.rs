//! The suspensions and blocks of a namespace as one text.
//!
//! The database stores them as one document in the TOML form of a registry. The file parses and
//! writes the text, adds entries to a registry, removes ended ones before they prevent new ones,
//! and describes the changes between two registries for the history. In the text of a registry, it
//! replaces them beside policies that cannot be read. Tests: below, `tests/overlays.rs`,
//! `tests/policy_command.rs`.

use limiter_core::registry::{Block, PolicyRegistry};
use limiter_core::{ConfigError, Timestamp};
use toml::{Table, Value};

use crate::policy_text::TextError;

/// The tables of suspensions and blocks in the text of a registry.
const TABLES: [&str; 2] = ["suspend", "block"];

/// Parses a text that contains suspensions and blocks only.
///
/// # Errors
///
/// [`TextError`] with all errors of the text.
pub fn parse(text: &str) -> Result<PolicyRegistry, TextError> {
    let registry = PolicyRegistry::from_toml(text).map_err(TextError::Registry)?;
    if !registry.names().is_empty() || !registry.rules().is_empty() {
        let reason = "the text contains policies or rules, which are stored separately";
        return Err(TextError::Unsuitable(reason.to_owned()));
    }
    Ok(registry)
}

/// Returns the suspensions and blocks of a registry as text.
///
/// # Errors
///
/// [`ConfigError`] when the registry has too many.
pub fn of(registry: &PolicyRegistry) -> Result<String, ConfigError> {
    let overlays = PolicyRegistry::new();
    copy(registry, &overlays)?;
    Ok(overlays.to_toml())
}

/// Returns the suspensions and blocks in the text of a registry. Policies and rules may have
/// errors.
///
/// # Errors
///
/// [`TextError`] for a text that is not TOML, and with the errors of suspensions and blocks.
pub fn read_from(text: &str) -> Result<PolicyRegistry, TextError> {
    let (_, overlays) = separated(text)?;
    parse(&overlays.to_string())
}

/// Returns the text of a registry with these suspensions and blocks in place of its own. Policies
/// and rules stay, also those that cannot be read.
///
/// # Errors
///
/// [`TextError`] for a text that is not TOML, and for too many suspensions and blocks.
pub fn replace_in(text: &str, overlays: &PolicyRegistry) -> Result<String, TextError> {
    let (mut registry, _) = separated(text)?;
    let overlays = of(overlays).map_err(|error| TextError::Unsuitable(error.to_string()))?;
    for (name, value) in table(&overlays)? {
        // The formats are those of the text, or of the suspensions if these need a later one.
        let known = registry.get(&name).and_then(Value::as_integer);
        if known.is_none_or(|known| value.as_integer().is_none_or(|needed| known < needed)) {
            registry.insert(name, value);
        }
    }
    Ok(registry.to_string())
}

/// Separates the text of a registry from its suspensions and blocks.
fn separated(text: &str) -> Result<(Table, Table), TextError> {
    let mut registry = table(text)?;
    let overlays = TABLES.into_iter().filter_map(|name| registry.remove_entry(name));
    let overlays = overlays.collect();
    Ok((registry, overlays))
}

fn table(text: &str) -> Result<Table, TextError> {
    let parsed = text.parse::<Table>();
    parsed.map_err(|error| TextError::Unsuitable(error.to_string()))
}

/// Replaces the suspensions and blocks of a registry.
///
/// # Errors
///
/// [`ConfigError`] when there are too many.
pub fn copy(from: &PolicyRegistry, to: &PolicyRegistry) -> Result<(), ConfigError> {
    to.set_overlays(from.suspensions(), from.blocks())
}

/// Adds the suspensions and blocks of a registry that have not ended to another one. They replace
/// those of the same scope, and of the same keys and app; others stay.
///
/// # Errors
///
/// [`ConfigError`] when there are too many.
pub fn add(from: &PolicyRegistry, to: &PolicyRegistry, now: Timestamp) -> Result<(), ConfigError> {
    for suspension in from.suspensions().into_iter().filter(|of| of.end() > now) {
        to.suspend(suspension)?;
    }
    let blocks = from.blocks().into_iter();
    for block in blocks.filter(|of| of.end().is_none_or(|end| end > now)) {
        to.block(block)?;
    }
    Ok(())
}

/// Returns whether a registry has suspensions or blocks.
#[must_use]
pub fn is_in(registry: &PolicyRegistry) -> bool {
    !(registry.suspensions().is_empty() && registry.blocks().is_empty())
}

/// Removes the suspensions and blocks that have ended until a time.
///
/// # Errors
///
/// [`ConfigError`] when there are too many others.
pub fn remove_ended(registry: &PolicyRegistry, time: Timestamp) -> Result<(), ConfigError> {
    let suspensions = registry.suspensions().into_iter();
    let blocks = registry.blocks().into_iter();
    registry.set_overlays(
        suspensions.filter(|of| of.end() > time),
        blocks.filter(|of| of.end().is_none_or(|end| end > time)),
    )
}

/// Removes the suspensions and blocks that have ended, if a registry has half of the largest
/// number, so that ended ones never prevent new ones.
///
/// # Errors
///
/// [`ConfigError`] when there are too many others.
pub fn make_room(registry: &PolicyRegistry, now: Timestamp) -> Result<(), ConfigError> {
    let is_full = registry.suspensions().len() >= PolicyRegistry::MAX_SUSPENSIONS / 2
        || registry.blocks().len() >= PolicyRegistry::MAX_BLOCKS / 2;
    match is_full {
        true => remove_ended(registry, now),
        false => Ok(()),
    }
}

/// Returns the changes from one registry to another in words, for the history. Each names the
/// author and the reason that the entry states.
#[must_use]
pub fn changes(before: &PolicyRegistry, after: &PolicyRegistry) -> Vec<String> {
    let mut changes = Vec::new();
    let (old, new) = (before.suspensions(), after.suspensions());
    for suspension in new.iter().filter(|of| !old.contains(of)) {
        let stated = stated(suspension.author(), suspension.reason());
        changes.push(format!(
            "suspended {} ({}){stated}",
            suspension.scope(),
            suspension.mode()
        ));
    }
    for suspension in old {
        if !new.iter().any(|of| of.scope() == suspension.scope()) {
            let stated = stated(suspension.author(), suspension.reason());
            changes.push(format!("ended the suspension of {}{stated}", suspension.scope()));
        }
    }
    let (old, new) = (before.blocks(), after.blocks());
    for block in new.iter().filter(|of| !old.contains(of)) {
        let stated = stated(block.author(), block.reason());
        let target = block.target();
        changes.push(format!("blocked {} {}{stated}", target.field(), target.value()));
    }
    for block in old {
        let is_it = |of: &Block| of.target() == block.target() && of.app() == block.app();
        if !new.iter().any(is_it) {
            let (target, stated) = (block.target(), stated(block.author(), block.reason()));
            changes.push(format!(
                "ended the block of {} {}{stated}",
                target.field(),
                target.value()
            ));
        }
    }
    changes
}

/// Returns the author and the reason that an entry states.
fn stated(author: Option<&str>, reason: Option<&str>) -> String {
    let author = author.map(|author| format!(", by {author}"));
    let reason = reason.map(|reason| format!(": {reason}"));
    author.unwrap_or_default() + &reason.unwrap_or_default()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_without_ended_overlays() {
        let text = "[[suspend]]\nscope = 'all'\nenforcement = 'off'\nuntil = 1970-01-01T00:00:01Z\n\
                    [[block]]\nkey = 'eve'\n";
        let registry = parse(text).unwrap();
        assert!(is_in(&registry) && of(&registry).unwrap().contains("[[suspend]]"));
        remove_ended(&registry, Timestamp::from_micros(1_000_000)).unwrap();
        let text = of(&registry).unwrap();
        assert!(
            !text.contains("[[suspend]]") && text.contains("key = \"eve\""),
            "{text}"
        );
        assert_eq!(of(&parse(&text).unwrap()).unwrap(), text);
        assert!(parse("[policy.p]\nalgorithm = 'concurrency'\nmax = 1\n").is_err());
    }

    #[test]
    fn overlays_are_replaced_beside_policies_with_errors() {
        let text = "format = 1\nmin_reader = 1\n[policy.a]\nalgorithm = 'unknown'\nsizes = [1, 2.5, 'x']\n\
                    at = 2030-01-01T00:00:00Z\n[[rule]]\nmatch = ['z']\n[[rule]]\nmatch = ['a']\n\
                    [[block]]\nkey = 'eve'\n";
        let read = read_from(text).unwrap();
        assert_eq!((read.blocks().len(), read.suspensions().len()), (1, 0));
        let others = |text: &str| separated(text).unwrap().0;
        let suspended = parse(
            "[[suspend]]\nscope = 'all'\nenforcement = 'off'\nfrom = 2029-01-01T00:00:00Z\nuntil = 2030-01-01T00:00:00Z\n",
        );
        let suspended = suspended.unwrap();
        let replaced = replace_in(text, &suspended).unwrap();
        assert_eq!(
            of(&read_from(&replaced).unwrap()).unwrap(),
            of(&suspended).unwrap()
        );
        assert_eq!(others(&replaced)["min_reader"], Value::from(3));
        for name in ["policy", "rule"] {
            assert_eq!(others(&replaced)[name], others(text)[name], "{replaced}");
        }
        let ended = replace_in(&replaced, &PolicyRegistry::new()).unwrap();
        assert!(!ended.contains("suspend") && !ended.contains("block"), "{ended}");
        assert_eq!(
            others(&ended)["min_reader"],
            Value::from(3),
            "the policies may need it"
        );
        assert!(replace_in("[policy.", &suspended).is_err() && read_from("= 1").is_err());
        let invalid = read_from("[[block]]\nkeys = 'eve'\n").unwrap_err().to_string();
        assert!(invalid.contains("keys"), "{invalid}");
    }

    #[test]
    fn changes_name_scope_author_and_reason() {
        let old = "[[suspend]]\nscope = 'app:shop'\nenforcement = 'off'\nuntil = 2030-01-01T00:00:00Z\n\
                   by = 'ann'\nreason = 'outage'\n[[block]]\nkey = 'eve'\nby = 'ann'\n";
        let new = "[[suspend]]\nscope = 'policy:p'\nenforcement = 'deny'\nuntil = 2030-01-01T00:00:00Z\n\
                   by = 'command:bob'\nreason = 'attack'\n[[block]]\nkey = 'mallory'\nreason = 'spam'\n";
        let (old, new) = (parse(old).unwrap(), parse(new).unwrap());
        assert_eq!(
            changes(&old, &new),
            [
                "suspended policy:p (deny), by command:bob: attack",
                "ended the suspension of app:shop, by ann: outage",
                "blocked key mallory: spam",
                "ended the block of key eve, by ann",
            ]
        );
        assert!(changes(&new, &new).is_empty());
    }
}
