//! Suspensions and blocks of the registry.

use limiter_core::Timestamp;
use limiter_core::registry::{
    Block, BlockTarget, PolicyRegistry, Suspension, SuspensionMode, SuspensionScope,
};

use super::end::later;

/// An overlay that applies to all calls, unless it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlay {
    SuspendedPolicies(SuspensionMode),
    SuspendedApp(SuspensionMode),
    SuspendedAll(SuspensionMode),
    /// Another app is suspended.
    SuspendedOther,
    Expired(SuspensionMode),
    /// The key is blocked, if the entry point has one.
    Blocked,
    ExpiredBlock,
}

/// The app of the limiter.
pub(crate) const APP: &str = "checkout";

impl Overlay {
    /// Adds the overlay to a registry. The end is after the time of the clock, or equal to it.
    pub(crate) fn put_into(self, registry: &PolicyRegistry, now: Timestamp) {
        let later = later(now);
        let suspend = |scopes: &[&str], mode, until| {
            for scope in scopes {
                let scope: SuspensionScope = scope.parse().unwrap();
                registry.suspend(Suspension::new(scope, mode, until)).unwrap();
            }
        };
        // Every key begins with a digit.
        let block = |until| {
            for digit in 0..10 {
                let target = BlockTarget::Key(format!("{digit}*"));
                registry.block(Block::new(target).until(until)).unwrap();
            }
        };
        match self {
            Self::SuspendedPolicies(mode) => suspend(&["policy:p", "policy:q"], mode, later),
            Self::SuspendedApp(mode) => suspend(&["app:checkout"], mode, later),
            Self::SuspendedAll(mode) => suspend(&["all"], mode, later),
            Self::SuspendedOther => suspend(&["app:check", "policy:pp"], SuspensionMode::Deny, later),
            Self::Expired(mode) => suspend(&["all", "app:checkout", "policy:p"], mode, now),
            Self::Blocked => block(later),
            Self::ExpiredBlock => block(now),
        }
    }

    /// Returns the mode in place of that of the policies, if any.
    pub(crate) fn mode(self) -> Option<SuspensionMode> {
        match self {
            Self::SuspendedPolicies(mode) | Self::SuspendedApp(mode) | Self::SuspendedAll(mode) => Some(mode),
            _ => None,
        }
    }
}

/// Removes all overlays.
pub(crate) fn remove_overlays(registry: &PolicyRegistry) {
    for suspension in registry.suspensions() {
        registry.end_suspension(suspension.scope());
    }
    for block in registry.blocks() {
        registry.unblock(block.target(), block.app());
    }
}
