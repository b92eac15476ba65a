//! The overlays of a source, and the effective ones of all sources.

use std::collections::HashMap;
use std::sync::Arc;

use crate::key::Key;
use crate::policy::KeyList;
use crate::registry::overlay::{Block, BlockTarget, Suspension, SuspensionMode};
use crate::units::Timestamp;

/// The overlays of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceOverlays {
    pub(crate) suspensions: Vec<Suspension>,
    pub(crate) blocks: Vec<Block>,
}

impl SourceOverlays {
    #[cfg(feature = "registry")]
    pub(crate) fn is_empty(&self) -> bool {
        self.suspensions.is_empty() && self.blocks.is_empty()
    }
}

/// The effect of the overlays on one limit of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverlayRule {
    Suspended(SuspensionMode),
    Blocked,
}

/// The effective overlays of all sources.
#[derive(Debug, Default)]
pub(crate) struct OverlaySet {
    /// In descending order of precedence.
    pub(super) suspensions: Vec<Suspension>,
    pub(super) blocks: Vec<Block>,
    for_all: BlockedKeys,
    by_app: HashMap<Box<str>, BlockedKeys>,
}

impl OverlaySet {
    /// Joins the overlays of sources, given in descending order of precedence.
    pub(super) fn join<'a>(sources: impl IntoIterator<Item = &'a Arc<SourceOverlays>>) -> Self {
        let mut set = Self::default();
        for source in sources {
            set.suspensions.extend(source.suspensions.iter().cloned());
            for block in &source.blocks {
                let keys = match block.app() {
                    None => &mut set.for_all,
                    Some(app) => set.by_app.entry(app.into()).or_default(),
                };
                keys.add(block);
                if !set.blocks.iter().any(|of| of.replaces(block)) {
                    set.blocks.push(block.clone());
                }
            }
        }
        // The sort is stable, so the first source takes precedence.
        set.suspensions
            .sort_by_key(|suspension| suspension.scope().rank());
        set
    }

    pub(super) fn is_empty(&self) -> bool {
        self.suspensions.is_empty() && self.blocks.is_empty()
    }

    /// Returns the effective overlays as those of one source.
    #[cfg(feature = "registry")]
    pub(crate) fn to_source(&self) -> SourceOverlays {
        let mut suspensions: Vec<Suspension> = Vec::new();
        for suspension in &self.suspensions {
            if !suspensions.iter().any(|of| of.scope() == suspension.scope()) {
                suspensions.push(suspension.clone());
            }
        }
        SourceOverlays {
            suspensions,
            blocks: self.blocks.clone(),
        }
    }

    /// Returns the effect on a limit of a policy and a key, if any. A suspension takes precedence.
    pub(crate) fn rule(
        &self,
        policy: &str,
        key: &Key<'_>,
        app: Option<&str>,
        now: Timestamp,
        obeys_suspensions: bool,
    ) -> Option<OverlayRule> {
        let suspension = self.suspension(policy, app, now);
        match suspension.filter(|_| obeys_suspensions) {
            Some(suspension) => Some(OverlayRule::Suspended(suspension.mode())),
            None => self.blocks(key, app, now).then_some(OverlayRule::Blocked),
        }
    }

    fn suspension(&self, policy: &str, app: Option<&str>, now: Timestamp) -> Option<&Suspension> {
        self.suspensions
            .iter()
            .find(|suspension| suspension.is_active_at(now) && suspension.scope().contains(policy, app))
    }

    fn blocks(&self, key: &Key<'_>, app: Option<&str>, now: Timestamp) -> bool {
        let of_app = || app.and_then(|app| self.by_app.get(app));
        self.for_all.contains(key, now) || of_app().is_some_and(|keys| keys.contains(key, now))
    }
}

/// Keys with the times until which they are blocked.
#[derive(Debug, Default)]
struct BlockedKeys {
    listed: KeyList,
    /// Two neighbouring parts of a key, escaped and joined as in the key. `None` does not end.
    parts: HashMap<Box<str>, Option<Timestamp>>,
}

impl BlockedKeys {
    fn add(&mut self, block: &Block) {
        match block.target() {
            BlockTarget::Key(text) | BlockTarget::Network(text) => {
                // The entry was parsed when the block was added.
                let _ = self.listed.add(text, block.end());
            }
            BlockTarget::Part { name, value } => {
                let part = BlockTarget::escaped_part(name, value).into();
                let end = self.parts.entry(part).or_insert(block.end());
                // A block without an end lasts longer than any other.
                *end = end.zip(block.end()).map(|(one, other)| one.max(other));
            }
        }
    }

    fn contains(&self, key: &Key<'_>, now: Timestamp) -> bool {
        self.listed.denies(key, now) || (!self.parts.is_empty() && self.contains_part(key.as_str(), now))
    }

    fn contains_part(&self, text: &str, now: Timestamp) -> bool {
        let mut starts = std::iter::once(0).chain(text.match_indices(':').map(|(colon, _)| colon + 1));
        let ends = text.match_indices(':').map(|(colon, _)| colon);
        // The first part ends at the first colon, so the pairs end at the later ones.
        let mut pairs = ends.skip(1).chain([text.len()]).zip(&mut starts);
        pairs.any(|(end, start)| {
            let until = text.get(start..end).and_then(|pair| self.parts.get(pair));
            until.is_some_and(|until| until.is_none_or(|until| now < until))
        })
    }
}
