//! The suspensions and blocks of a namespace as one text.

use limiter_core::registry::PolicyRegistry;
use limiter_core::{ConfigError, Timestamp};

use crate::policy_text::TextError;

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

/// The suspensions and blocks of a registry as text.
///
/// # Errors
///
/// [`ConfigError`] when the registry has too many.
pub fn of(registry: &PolicyRegistry) -> Result<String, ConfigError> {
    let overlays = PolicyRegistry::new();
    copy(registry, &overlays)?;
    Ok(overlays.to_toml())
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

/// Whether a registry has suspensions or blocks.
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
}
