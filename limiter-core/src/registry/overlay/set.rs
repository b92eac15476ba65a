//! The overlays of a source, and the effective ones of all sources.
//!
//! `OverlaySet::join` sorts the suspensions by precedence and adds the blocks to a key list and a
//! table of key parts, for all apps and for each app, so that a call does not compare its key with
//! each block. Precedence: a suspension before a block; a policy's scope before an app's before
//! `all`; and for equal scopes the order of the sources. Tests: `tests/contract/overlays.rs`,
//! `tests/registry/overlays.rs`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::key::Key;
use crate::policy::KeyList;
use crate::registry::PolicyEntry;
use crate::registry::overlay::{Block, BlockTarget, Suspension, SuspensionMode};
#[cfg(feature = "registry")]
use crate::support::clock::Clock;
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

/// A limit of a call, as far as overlays concern it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverlaidLimit<'a> {
    pub(crate) policy: &'a str,
    pub(crate) key: &'a Key<'a>,
    pub(crate) app: Option<&'a str>,
    /// The entry of the policy, if blocks need the parts that it declares.
    pub(crate) entry: Option<&'a PolicyEntry>,
}

/// The effective overlays of all sources.
#[derive(Debug, Default)]
pub(crate) struct OverlaySet {
    /// In descending order of precedence.
    pub(in crate::registry) suspensions: Vec<Suspension>,
    pub(in crate::registry) blocks: Vec<Block>,
    for_all: BlockedKeys,
    by_app: HashMap<Box<str>, BlockedKeys>,
}

impl OverlaySet {
    /// Joins the overlays of sources, given in descending order of precedence.
    pub(in crate::registry) fn join<'a>(sources: impl IntoIterator<Item = &'a Arc<SourceOverlays>>) -> Self {
        let mut set = Self::default();
        let mut positions = HashMap::new();
        for source in sources {
            set.suspensions.extend(source.suspensions.iter().cloned());
            for block in &source.blocks {
                let keys = match block.app() {
                    None => &mut set.for_all,
                    Some(app) => set.by_app.entry(app.into()).or_default(),
                };
                keys.add(block);
                let position = *positions
                    .entry((block.target(), block.app()))
                    .or_insert(set.blocks.len());
                match set.blocks.get_mut(position) {
                    None => set.blocks.push(block.clone()),
                    // The keys are denied until the later end.
                    Some(known) if known.ends_before(block) => *known = block.clone(),
                    Some(_) => {}
                }
            }
        }
        // The sort is stable, so the first source takes precedence.
        set.suspensions
            .sort_by_key(|suspension| suspension.scope().rank());
        set
    }

    pub(in crate::registry) fn is_empty(&self) -> bool {
        self.suspensions.is_empty() && self.blocks.is_empty()
    }

    /// Returns the effective overlays as those of one source: of the suspensions of one scope, the
    /// one that is active by the system's clock, or the first one that has not ended.
    #[cfg(feature = "registry")]
    pub(crate) fn to_source(&self) -> SourceOverlays {
        let now = Clock::System.calendar();
        let order = |of: &Suspension| (!of.is_active_at(now), of.has_ended_at(now));
        let mut suspensions: Vec<Suspension> = Vec::new();
        for suspension in &self.suspensions {
            match suspensions.iter_mut().find(|of| of.scope() == suspension.scope()) {
                None => suspensions.push(suspension.clone()),
                Some(known) if order(suspension) < order(known) => *known = suspension.clone(),
                Some(_) => {}
            }
        }
        SourceOverlays {
            suspensions,
            blocks: self.blocks.clone(),
        }
    }

    /// Returns whether a block names a part of keys, which the entries of policies can declare.
    pub(crate) fn blocks_parts(&self) -> bool {
        let mut keys = std::iter::once(&self.for_all).chain(self.by_app.values());
        keys.any(|keys| !keys.parts.is_empty())
    }

    /// Returns the effect on a limit, if any. A suspension takes precedence.
    pub(crate) fn rule(
        &self,
        limit: &OverlaidLimit<'_>,
        now: Timestamp,
        obeys_suspensions: bool,
    ) -> Option<OverlayRule> {
        let suspension = self.suspension(limit.policy, limit.app, now);
        match suspension.filter(|_| obeys_suspensions) {
            Some(suspension) => Some(OverlayRule::Suspended(suspension.mode())),
            None => self.blocks(limit, now).then_some(OverlayRule::Blocked),
        }
    }

    fn suspension(&self, policy: &str, app: Option<&str>, now: Timestamp) -> Option<&Suspension> {
        self.suspensions
            .iter()
            .find(|suspension| suspension.is_active_at(now) && suspension.scope().contains(policy, app))
    }

    fn blocks(&self, limit: &OverlaidLimit<'_>, now: Timestamp) -> bool {
        let of_app = || limit.app.and_then(|app| self.by_app.get(app));
        self.for_all.contains(limit, now) || of_app().is_some_and(|keys| keys.contains(limit, now))
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

    fn contains(&self, limit: &OverlaidLimit<'_>, now: Timestamp) -> bool {
        let text = limit.key.as_str();
        self.listed.denies(limit.key, now)
            || !self.parts.is_empty()
                && (self.contains_neighbours(text, now) || self.contains_declared(text, limit.entry, now))
    }

    /// Returns whether the key has a blocked value in a part that its policy declares.
    fn contains_declared(&self, text: &str, entry: Option<&PolicyEntry>, now: Timestamp) -> bool {
        let names = || entry.into_iter().flat_map(PolicyEntry::key_parts);
        let values = text.split(':');
        // A key with other parts is not of the declared form.
        if names().count() != values.clone().count() {
            return false;
        }
        let mut parts = names().zip(values);
        parts.any(|(name, value)| self.is_blocked(&BlockTarget::joined(name, value), now))
    }

    /// Returns whether two neighbouring parts of the key are a blocked name and value.
    fn contains_neighbours(&self, text: &str, now: Timestamp) -> bool {
        let mut starts = std::iter::once(0).chain(text.match_indices(':').map(|(colon, _)| colon + 1));
        let ends = text.match_indices(':').map(|(colon, _)| colon);
        // The first part ends at the first colon, so the pairs end at the later ones.
        let mut pairs = ends.skip(1).chain([text.len()]).zip(&mut starts);
        pairs.any(|(end, start)| {
            text.get(start..end)
                .is_some_and(|pair| self.is_blocked(pair, now))
        })
    }

    fn is_blocked(&self, part: &str, now: Timestamp) -> bool {
        let until = self.parts.get(part);
        until.is_some_and(|until| until.is_none_or(|until| now < until))
    }
}
