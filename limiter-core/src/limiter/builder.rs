//! Builds limiters.

/// How policies are found by name, which builders of either kind are told in the same words.
macro_rules! names_of_policies {
    () => {
        /// The book whose policies are asked for by [name](Limiter::named). Default: an empty one of its own.
        pub fn book(mut self, book: &PolicyBook) -> Self {
            self.names.book = book.clone();
            self
        }

        /// Which app this is, for policies that are [for some apps](crate::BookEntry::for_apps). Default: none.
        pub fn app(mut self, app: impl Into<String>) -> Self {
            self.names.app = Some(app.into().into());
            self
        }

        /// What becomes of calls that ask for a policy that is not in the book, or not for this app. Default:
        /// [`OnNotConfigured::Allow`].
        pub fn on_not_configured(mut self, answer: OnNotConfigured) -> Self {
            self.names.on_not_configured = answer;
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

/// Calls that may wait at once, unless a builder says otherwise.
const MAX_WAITING: usize = 10_000;
