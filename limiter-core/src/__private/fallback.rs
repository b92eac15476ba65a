//! The value of a fallback, whether or not it is async.

/// A fallback's value, or the future of one: `Fallback(value).resolve().await` returns the value in
/// both cases.
#[derive(Debug)]
pub struct Fallback<T>(pub T);

impl<F: Future> Fallback<F> {
    /// Awaits an async fallback. An inherent method, so it is found before the trait's.
    pub async fn resolve(self) -> F::Output {
        self.0.await
    }
}

/// Returns the value of a sync fallback.
#[expect(
    async_fn_in_trait,
    reason = "called on concrete types, where auto traits leak through"
)]
pub trait ResolveValue<T> {
    /// Returns the value.
    async fn resolve(self) -> T;
}

impl<T> ResolveValue<T> for Fallback<T> {
    async fn resolve(self) -> T {
        self.0
    }
}
