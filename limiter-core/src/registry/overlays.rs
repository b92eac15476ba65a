//! Reads and changes the overlays of a registry.
//!
//! A change replaces the overlays of the source `code`, and the effective overlays are computed
//! again from all sources. Each limiter of the registry is informed whether there are overlays, so
//! that a call without overlays reads one atomic byte and takes no lock.
//!
//! Invariant: the flag changes under the lock of the sources, so that the last change determines
//! it. Tests: `tests/registry/overlays.rs`, `tests/contract/overlays.rs`.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use crate::error::ConfigError;
use crate::registry::PolicyRegistry;
use crate::registry::overlay::{Block, BlockTarget, OverlaySet, SourceOverlays, Suspension, SuspensionScope};
use crate::registry::sources::SourceStack;
use crate::support::clock::Clock;

/// A limiter that is informed whether its registry has overlays.
pub(crate) trait OverlayWatcher: Send + Sync {
    fn set_has_overlays(&self, has_overlays: bool);
}

impl PolicyRegistry {
    /// Maximum number of suspensions of one source.
    pub const MAX_SUSPENSIONS: usize = 1_000;
    /// Maximum number of blocks of one source.
    pub const MAX_BLOCKS: usize = 10_000;

    /// Suspends the enforcement of policies until the end of the suspension. Replaces the
    /// suspension of this scope that [code](Self#where-policies-come-from) has added. It applies to
    /// all calls of limiters with this registry, also to those with a policy of their own, and
    /// takes effect on the next call. Calls that already wait keep their mode.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::registry::{PolicyRegistry, Suspension, SuspensionMode, SuspensionScope};
    /// use limiter_core::{Limiter, ManualClock, Origin, Policy, Rejection};
    /// use std::time::Duration;
    ///
    /// let search = Policy::token_bucket("search").capacity(2).rate("1/s").build()?;
    /// let (clock, registry) = (ManualClock::new(), PolicyRegistry::new().with(search));
    /// let limits = Limiter::in_process().clock(&clock).registry(&registry).build();
    ///
    /// let end = clock.now().after(Duration::from_secs(3_600));
    /// let scope: SuspensionScope = "policy:search".parse()?;
    /// registry.suspend(Suspension::new(scope, SuspensionMode::Deny, end).with_reason("broken client"))?;
    /// let denied = limits.named("search").check("ann").await?.require().unwrap_err();
    /// assert!(matches!(&denied, Rejection::Forbidden { decision, .. } if decision.origin() == Origin::Suspension));
    ///
    /// clock.set(end);
    /// assert!(limits.named("search").check("ann").await?.is_allowed());
    /// # Ok::<(), Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for a name that is empty or longer than 256 bytes, and for more
    /// than [`MAX_SUSPENSIONS`](Self::MAX_SUSPENSIONS) suspensions. Suspensions that have ended by
    /// the system's clock are removed first.
    pub fn suspend(&self, suspension: Suspension) -> Result<(), ConfigError> {
        suspension.check()?;
        self.edit_overlays(|overlays| {
            let list = &mut overlays.suspensions;
            list.retain(|of| of.scope() != suspension.scope());
            if list.len() >= Self::MAX_SUSPENSIONS {
                let now = Clock::System.calendar();
                list.retain(|of| !of.has_ended_at(now));
            }
            list.push(suspension);
            let (count, most) = (list.len(), Self::MAX_SUSPENSIONS);
            if count > most {
                let expected = format!("at most {most}");
                return Err(ConfigError::invalid("number of suspensions", count, expected));
            }
            Ok(())
        })
    }

    /// Removes the suspension of exactly this scope that code has added. Returns whether there was
    /// one.
    pub fn end_suspension(&self, scope: &SuspensionScope) -> bool {
        let mut was_there = false;
        // The change has no error.
        let _ = self.edit_overlays(|overlays| {
            let before = overlays.suspensions.len();
            overlays.suspensions.retain(|of| of.scope() != scope);
            was_there = overlays.suspensions.len() < before;
            Ok(())
        });
        was_there
    }

    /// Returns the suspensions of all sources in descending order of precedence, including those
    /// that have ended and were not removed.
    #[must_use]
    pub fn suspensions(&self) -> Vec<Suspension> {
        self.with_overlays(|overlays| overlays.suspensions.clone())
    }

    /// Denies keys under all policies. Replaces the block of the same keys and app that
    /// [code](Self#where-policies-come-from) has added. It applies to all calls of limiters with
    /// this registry, also to those with a policy of their own, and takes effect on the next call.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::registry::{Block, BlockTarget, PolicyRegistry};
    /// use limiter_core::{Limiter, Origin, Policy};
    ///
    /// let search = Policy::token_bucket("search").capacity(2).rate("1/s").build()?;
    /// let registry = PolicyRegistry::new().with(search);
    /// let limits = Limiter::in_process().registry(&registry).build();
    ///
    /// registry.block(Block::new(BlockTarget::part("tenant=acme")?).with_reason("abuse"))?;
    /// let denied = limits.named("search").check("tenant:acme:user:7").await?;
    /// assert_eq!((denied.is_allowed(), denied.origin()), (false, Origin::Block));
    /// assert!(limits.named("search").check("tenant:other:user:7").await?.is_allowed());
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for an invalid key, network or part, and for more than
    /// [`MAX_BLOCKS`](Self::MAX_BLOCKS) blocks. Blocks that have ended by the system's clock are
    /// removed first.
    pub fn block(&self, block: Block) -> Result<(), ConfigError> {
        block.check()?;
        self.edit_overlays(|overlays| {
            let list = &mut overlays.blocks;
            list.retain(|of| !of.replaces(&block));
            if list.len() >= Self::MAX_BLOCKS {
                let now = Clock::System.calendar();
                list.retain(|of| of.is_active_at(now));
            }
            list.push(block);
            let (count, most) = (list.len(), Self::MAX_BLOCKS);
            if count > most {
                let expected = format!("at most {most}");
                return Err(ConfigError::invalid("number of blocks", count, expected));
            }
            Ok(())
        })
    }

    /// Removes the block of exactly these keys and this app that code has added. Returns whether
    /// there was one.
    pub fn unblock(&self, target: &BlockTarget, app: Option<&str>) -> bool {
        let mut was_there = false;
        // The change has no error.
        let _ = self.edit_overlays(|overlays| {
            let before = overlays.blocks.len();
            overlays
                .blocks
                .retain(|of| of.target() != target || of.app() != app);
            was_there = overlays.blocks.len() < before;
            Ok(())
        });
        was_there
    }

    /// Returns the blocks of all sources, including those that have ended and were not removed. If
    /// several sources block the same keys of the same apps, the list contains the block that ends
    /// last.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        self.with_overlays(|overlays| overlays.blocks.clone())
    }

    /// Replaces all suspensions and blocks that [code](Self#where-policies-come-from) has added.
    ///
    /// # Errors
    ///
    /// As [`suspend`](Self::suspend) and [`block`](Self::block), and for two suspensions of one
    /// scope and two blocks of the same keys and app.
    pub fn set_overlays(
        &self,
        suspensions: impl IntoIterator<Item = Suspension>,
        blocks: impl IntoIterator<Item = Block>,
    ) -> Result<(), ConfigError> {
        let new = SourceOverlays {
            suspensions: suspensions.into_iter().collect(),
            blocks: blocks.into_iter().collect(),
        };
        new.suspensions.iter().try_for_each(Suspension::check)?;
        new.blocks.iter().try_for_each(Block::check)?;
        let scopes: HashSet<_> = new.suspensions.iter().map(Suspension::scope).collect();
        let targets: HashSet<_> = (new.blocks.iter())
            .map(|block| (block.target(), block.app()))
            .collect();
        for (name, count, distinct, most) in [
            (
                "suspensions",
                new.suspensions.len(),
                scopes.len(),
                Self::MAX_SUSPENSIONS,
            ),
            ("blocks", new.blocks.len(), targets.len(), Self::MAX_BLOCKS),
        ] {
            if count != distinct || count > most {
                let expected = format!("at most {most}, without repetitions");
                return Err(ConfigError::invalid(name, count, expected));
            }
        }
        self.edit_overlays(|overlays| {
            *overlays = new;
            Ok(())
        })
    }

    /// Informs a limiter now and after each change whether there are overlays.
    pub(crate) fn watch_overlays(&self, watcher: Weak<dyn OverlayWatcher>) {
        let _sources = self.sources();
        let has_overlays = self.with_overlays(|overlays| !overlays.is_empty());
        if let Some(watcher) = watcher.upgrade() {
            watcher.set_has_overlays(has_overlays);
        }
        let mut watchers = self.0.overlay_watchers.lock();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(watcher);
    }

    pub(crate) fn with_overlays<T>(&self, look: impl FnOnce(&OverlaySet) -> T) -> T {
        look(&self.0.overlays.read())
    }

    /// Recomputes the effective overlays from all sources.
    pub(in crate::registry) fn renew_overlays(&self, sources: &SourceStack) {
        let overlays = OverlaySet::join(sources.iter().rev().map(|source| &source.overlays));
        let has_overlays = !overlays.is_empty();
        let old = {
            let mut now = self.0.overlays.write();
            std::mem::replace(&mut *now, overlays)
        };
        let watchers = self.0.overlay_watchers.lock();
        for watcher in watchers.iter().filter_map(Weak::upgrade) {
            watcher.set_has_overlays(has_overlays);
        }
        drop(old);
    }

    fn edit_overlays(
        &self,
        change: impl FnOnce(&mut SourceOverlays) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        let mut sources = self.sources();
        let mut overlays = SourceOverlays::clone(&sources.code().overlays);
        change(&mut overlays)?;
        if overlays != *sources.code().overlays {
            sources.code().overlays = Arc::new(overlays);
            self.renew_overlays(&sources);
            self.count_change();
        }
        Ok(())
    }
}
