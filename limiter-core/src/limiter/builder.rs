//! Builds limiters.

/// Settings for named policies, which both builders have.
macro_rules! names_of_policies {
    () => {
        /// Sets the registry in which [named](Limiter::named) policies are looked up. Default: an
        /// empty registry of this limiter.
        pub fn registry(mut self, registry: &PolicyRegistry) -> Self {
            self.names.registry = registry.clone();
            self
        }

        /// Sets the name of this app, for policies [of certain
        /// apps](crate::registry::PolicyEntry::for_apps). A server that decides for other programs
        /// sets `*`, which selects the policies of all apps. Default: none.
        pub fn app(mut self, app: impl Into<String>) -> Self {
            self.names.app = Some(app.into().into());
            self
        }

        /// Sets the reaction to calls whose policy the registry does not contain for this app.
        /// Default: [`OnUnknownPolicy::Allow`].
        pub fn on_unknown_policy(mut self, answer: OnUnknownPolicy) -> Self {
            self.names.on_unknown_policy = answer;
            self
        }
    };
}

mod in_process;
#[cfg(feature = "redis")]
mod redis;

pub use crate::limiter::builder::in_process::InProcessBuilder;
#[cfg(feature = "redis")]
pub use crate::limiter::builder::redis::RedisBuilder;

/// Default for the maximum number of waiting calls.
const MAX_WAITING: usize = 10_000;
