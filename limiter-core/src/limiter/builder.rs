//! Builds limiters.

/// The setters of [`LimiterSettings`](crate::limiter::LimiterSettings), which both builders have.
macro_rules! shared_setters {
    () => {
        /// Sets the deadline of decisions under policies without a
        /// [deadline](crate::PolicyBuilder::deadline) of their own, which takes precedence. For a
        /// decision on several limits, the shortest deadline applies. More than zero and at most an
        /// hour. Default: 50 ms. Decisions in process do not wait for a store.
        pub fn default_deadline(mut self, deadline: Duration) -> Self {
            self.settings.defaults.deadline = deadline;
            self
        }

        /// Sets the decision without a reply of the store under policies without a
        /// [setting](crate::PolicyBuilder::on_store_failure) of their own, which takes precedence.
        /// For a decision on several limits, the strictest of their settings applies. In process, a
        /// store does not reply if its table is full. Default: [`OnStoreFailure::Local`].
        ///
        /// ```
        /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
        /// use limiter_core::{Limiter, OnStoreFailure, Origin, Policy};
        ///
        /// let limits = Limiter::in_process().max_keys(1);
        /// let limits = limits.default_on_store_failure(OnStoreFailure::FailOpen).build();
        /// let bucket = |name| Policy::token_bucket(name).capacity(1).rate("1/h");
        /// let search = bucket("search").build()?;
        /// let login = bucket("login").on_store_failure(OnStoreFailure::FailClosed).build()?;
        ///
        /// assert!(limits.check(&search, "ann").await?.is_allowed());
        /// assert_eq!(limits.check(&search, "bob").await?.origin(), Origin::FailedOpen);
        /// assert_eq!(limits.check(&login, "bob").await?.origin(), Origin::FailedClosed);
        /// # Ok::<(), limiter_core::Rejection>(())
        /// # }).unwrap();
        /// ```
        pub fn default_on_store_failure(mut self, answer: OnStoreFailure) -> Self {
            self.settings.defaults.on_store_failure = answer;
            self
        }

        /// Sets the registry in which [named](Limiter::named) policies are looked up. Default: an
        /// empty registry of this limiter.
        pub fn registry(mut self, registry: &PolicyRegistry) -> Self {
            self.settings.names.registry = registry.clone();
            self
        }

        /// Sets the name of this app, for policies [of certain
        /// apps](crate::registry::PolicyEntry::for_apps). A server that decides for other programs
        /// sets `*`, which selects the policies of all apps. Default: none.
        pub fn app(mut self, app: impl Into<String>) -> Self {
            self.settings.names.app = Some(app.into().into());
            self
        }

        /// Sets the reaction to calls whose policy the registry does not contain for this app.
        /// Default: [`OnUnknownPolicy::Allow`].
        pub fn on_unknown_policy(mut self, answer: OnUnknownPolicy) -> Self {
            self.settings.names.on_unknown_policy = answer;
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
