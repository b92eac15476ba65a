//! The attributes of limiter-core, which re-exports them: use them from there.
//!
//! - [`#[token_limiter]`](macro@token_limiter): bursts up to a capacity, then a steady rate.
//! - [`#[funnel_limiter]`](macro@funnel_limiter): the same limit; a change of its capacity keeps
//!   the used permits.
//! - [`#[window_limiter]`](macro@window_limiter): never more than a limit in any window.
//! - [`#[concurrency_limiter]`](macro@concurrency_limiter): never more than `max` calls at the same
//!   time.
//!
//! ```
//! use limiter_core::annotations::with_limiter;
//! use limiter_core::{Limiter, Rejection, token_limiter};
//!
//! #[token_limiter(capacity = 2, rate = "10/min", key = "user:{user}")]
//! async fn search(user: &str, text: &str) -> Result<String, Rejection> {
//!     Ok(format!("{user} found {text}"))
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! with_limiter(Limiter::in_process().build(), async {
//!     assert!(search("ann", "tea").await.is_ok());
//!     assert!(search("ann", "tea").await.is_ok());
//!     assert!(search("ann", "tea").await.is_err());
//!     assert!(search("bob", "tea").await.is_ok());
//! })
//! .await;
//! # });
//! ```

// Invariant: an attribute with errors still emits its item. Tests: `tests/behaviour.rs`,
// `tests/ui.rs`, `snapshot_tests.rs`, `frozen_tests.rs`.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "a test may panic"
    )
)]

mod argument_parser;
mod argument_table;
mod async_trait_body;
mod block;
mod constant_expr;
mod diagnostics;
mod expand;
mod fallback;
#[cfg(test)]
mod frozen_tests;
mod func;
mod literal;
mod model;
#[cfg(test)]
mod snapshot_tests;
mod template;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};

use crate::argument_table::AttributeKind;
use crate::block::{Block, is_block};
use crate::diagnostics::Diagnostics;
use crate::func::Func;
use crate::model::{Attr, LimitedFn, OuterAttrs};

/// Limits an async function, or the methods of an `impl` block, by a token bucket: `capacity`
/// calls at once, then `rate`.
///
/// In any time T it admits at most capacity + rate·T calls.
///
/// ```
/// use limiter_core::{Limiter, Rejection, token_limiter};
///
/// struct Claims {
///     sub: String,
/// }
///
/// struct State<T>(T);
///
/// struct App {
///     limits: Limiter,
/// }
///
/// #[token_limiter(name = "search", capacity = 20, rate = 10, key = "user:{claims.sub}", limiter = app.limits)]
/// async fn search(State(app): State<App>, claims: Claims) -> Result<String, Rejection> {
///     drop(app);
///     Ok(claims.sub)
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let app = App { limits: Limiter::in_process().build() };
/// assert_eq!(search(State(app), Claims { sub: "ann".to_owned() }).await?, "ann");
/// # Ok::<(), Rejection>(())
/// # }).unwrap();
/// ```
///
/// # Arguments of this attribute
///
/// | argument | meaning | default |
/// |---|---|---|
/// | `capacity = 20` | The tokens of a full bucket: the number of calls that are admitted at once. | required |
/// | `rate = 10` | The refill rate: a number is per second; text states its time, as in `"100/min"`, `"7/3s"`, `"1/30d"`; else a `Rate`. | required |
/// | `per = "1m"` | The time unit of a `rate` that is a number: text with a unit, or a `Duration`. | a second |
/// | `lease = "1s"` | Permits of a busy key are leased for this time at most, and used without a call to Redis (`PolicyBuilder::lease`). | no lease |
#[doc = include_str!("arguments.md")]
#[proc_macro_attribute]
pub fn token_limiter(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    limit(AttributeKind::Token, args.into(), item.into()).into()
}

/// Limits an async function, or the methods of an `impl` block, by a window. By default it is an
/// exact sliding window: never more than `limit` calls in any window.
///
/// ```
/// use limiter_core::annotations::with_limiter;
/// use limiter_core::{Limiter, window_limiter};
///
/// struct Outbox;
///
/// #[derive(Debug, PartialEq)]
/// enum Receipt {
///     Sent(String),
///     Queued(String),
/// }
///
/// impl Outbox {
///     #[window_limiter(name = "send", limit = 1, window = "1m", key = "{to}", fallback = self.queue, pass_args)]
///     async fn send(&self, to: &str, text: String) -> Receipt {
///         let _ = to;
///         Receipt::Sent(text)
///     }
///
///     async fn queue(&self, to: &str, text: String) -> Receipt {
///         let _ = to;
///         Receipt::Queued(text)
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// with_limiter(Limiter::in_process().build(), async {
///     assert_eq!(Outbox.send("ann", "one".to_owned()).await, Receipt::Sent("one".to_owned()));
///     assert_eq!(Outbox.send("ann", "two".to_owned()).await, Receipt::Queued("two".to_owned()));
/// })
/// .await;
/// # });
/// ```
///
/// A quota of a calendar period, such as a month in local time, and a large limit that is counted
/// with two counters:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use limiter_core::annotations::with_limiter;
/// use limiter_core::{Limiter, ManualClock, Rejection, Timestamp, window_limiter};
///
/// #[window_limiter(name = "reports", limit = 2, window = "month", kind = fixed, align = "+02:00", key = "{tenant}")]
/// async fn report(tenant: &str) -> Result<String, Rejection> {
///     Ok(format!("all of {tenant}"))
/// }
///
/// #[window_limiter(name = "events", limit = 1_000_000, window = "1m", kind = counter)]
/// async fn event() -> Result<(), Rejection> {
///     Ok(())
/// }
///
/// // 2025-11-22, 02:00 UTC.
/// let clock = ManualClock::starting_at(Timestamp::from_micros(1_763_776_800_000_000));
/// with_limiter(Limiter::in_process().clock(&clock).build(), async {
///     assert!(report("acme").await.is_ok() && report("acme").await.is_ok());
///     // At +02:00 November ends on the 30th, 22:00 UTC.
///     let denied = report("acme").await.unwrap_err();
///     let wait = denied.retry_after().unwrap();
///     assert_eq!(wait.as_secs(), (8 * 24 + 20) * 3_600);
///     clock.advance(wait);
///     assert!(report("acme").await.is_ok());
///     assert!(event().await.is_ok());
/// })
/// .await;
/// # });
/// ```
///
/// # Arguments of this attribute
///
/// | argument | meaning | default |
/// |---|---|---|
/// | `limit = 5` | The calls in any window: a whole number, at most 1,048,576 for an exact window. `need` is whole, too. | required |
/// | `window = "1m"` | The window's length: text with a unit, `"week"`, or a `Duration`; for a fixed window also `"month"`. | required |
/// | `kind = counter` | `exact`; `counter`: two counters in place of 8 bytes per permit, and less exact (`Policy::counter_window`); `fixed`: a counter that is reset with each period (`Policy::fixed_window`). An exact limit above 10,000 needs an explicit `kind`. | `exact` |
/// | `align = "utc"` | Fixed windows: periods start at calendar times, in UTC or at an offset such as `"+02:00"`. | with a key's first call |
#[doc = include_str!("arguments.md")]
#[proc_macro_attribute]
pub fn window_limiter(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    limit(AttributeKind::Window, args.into(), item.into()).into()
}

/// Limits an async function, or the methods of an `impl` block, by a funnel (a leaky bucket as a
/// meter) with a `capacity` that drains at `rate`.
///
/// It admits the same calls as a token bucket. A change of its capacity keeps the *used* permits; a
/// token bucket keeps the *remaining* ones.
///
/// ```
/// use limiter_core::annotations::with_limiter;
/// use limiter_core::{Limiter, Rejection, funnel_limiter, token_limiter};
///
/// fn busy(rejection: Rejection) -> Result<usize, Rejection> {
///     assert!(rejection.is_limited());
///     Ok(0)
/// }
///
/// /// Ten kilobytes at once and two a second; and, in the same decision, a hundred files an hour.
/// #[funnel_limiter(capacity = 10_000, rate = 2_000, need = data.len(), fallback = busy, pass_rejection)]
/// #[token_limiter(name = "files", capacity = 100, rate = "100/h")]
/// async fn upload(data: Vec<u8>) -> Result<usize, Rejection> {
///     Ok(data.len())
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// with_limiter(Limiter::in_process().build(), async {
///     assert_eq!(upload(vec![0; 9_000]).await?, 9_000);
///     assert_eq!(upload(vec![0; 9_000]).await?, 0);
///     Ok::<(), Rejection>(())
/// })
/// .await?;
/// # Ok::<(), Rejection>(())
/// # }).unwrap();
/// ```
///
/// With `paced`, calls leave evenly, at the funnel's rate; calls above its capacity are rejected:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use limiter_core::annotations::with_limiter;
/// use limiter_core::{Limiter, ManualClock, Rejection, funnel_limiter};
/// use std::time::Duration;
///
/// #[funnel_limiter(name = "mail", capacity = 2, rate = "2/s", paced)]
/// async fn send() -> Result<(), Rejection> {
///     Ok(())
/// }
///
/// let clock = ManualClock::new();
/// let start = clock.now();
/// with_limiter(Limiter::in_process().clock(&clock).build(), async {
///     send().await?; // at once
///     let second = async {
///         send().await?;
///         Ok::<_, Rejection>(clock.now())
///     };
///     // The funnel is full: the second call runs half a second after the first, the third one is rejected.
///     let time = async { clock.advance(Duration::from_millis(500)) };
///     let (second, third, ()) = tokio::join!(second, send(), time);
///     assert_eq!(second?, start.after(Duration::from_millis(500)));
///     assert!(third.is_err());
///     Ok::<(), Rejection>(())
/// })
/// .await?;
/// # Ok::<(), Rejection>(())
/// # }).unwrap();
/// ```
///
/// # Arguments of this attribute
///
/// | argument | meaning | default |
/// |---|---|---|
/// | `capacity = 20` | The capacity of the funnel: the number of calls that are admitted at once. | required |
/// | `rate = 10` | The drain rate: a number is per second; text names its time, as in `"100/min"`, `"7/3s"`, `"1/30d"`; else a `Rate`. | required |
/// | `per = "1m"` | The time unit of a `rate` that is a number: text with a unit, or a `Duration`. | a second |
/// | `lease = "1s"` | Permits of a busy key are leased for this time at most, and used without a call to Redis (`PolicyBuilder::lease`). | no lease |
/// | `paced` | A call waits until all earlier calls have drained, so that calls leave evenly. | calls continue at once |
#[doc = include_str!("arguments.md")]
#[proc_macro_attribute]
pub fn funnel_limiter(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    limit(AttributeKind::Funnel, args.into(), item.into()).into()
}

/// Limits the concurrent calls of an async function, in all processes together.
///
/// A call holds its permit from its start until its body ends or its future is dropped; arguments
/// that the body does not move are dropped after the release. With Redis the permit is a lease,
/// which is renewed while the call runs and expires if its process dies
/// (`Limiter::acquire_concurrency`). The release is then sent in the background.
///
/// ```
/// use limiter_core::annotations::with_limiter;
/// use limiter_core::{Limiter, Rejection, concurrency_limiter};
/// use std::time::Duration;
///
/// fn busy() -> Result<String, Rejection> {
///     Ok("busy".to_owned())
/// }
///
/// #[concurrency_limiter(max = 1, lease = "30s", key = "{tenant}", fallback = busy)]
/// async fn export(tenant: &str) -> Result<String, Rejection> {
///     tokio::time::sleep(Duration::from_millis(20)).await;
///     Ok(format!("all of {tenant}"))
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// with_limiter(Limiter::in_process().build(), async {
///     let (one, other, another) = tokio::join!(export("acme"), export("acme"), export("bolt"));
///     assert_eq!((one?.as_str(), other?.as_str(), another?.as_str()), ("all of acme", "busy", "all of bolt"));
///     assert_eq!(export("acme").await?, "all of acme");
///     Ok::<(), Rejection>(())
/// })
/// .await?;
/// # Ok::<(), Rejection>(())
/// # }).unwrap();
/// ```
///
/// In combination with other limits of one function, concurrency permits are acquired first, in the
/// order of the attributes; then one decision is made about the other limits, which may have
/// another group. If it denies, the permits are released. A `wait` is the total time for all of
/// them.
///
/// # Arguments of this attribute
///
/// | argument | meaning | default |
/// |---|---|---|
/// | `max = 4` | The number of permits that are held at once: a whole number, at most 1,048,576. `need` is whole, too, and at most 1,024. | required |
/// | `lease = "30s"` | The time after which the permits of a dead process expire: whole milliseconds from 100 ms to a day. | 30 s |
#[doc = include_str!("arguments.md")]
#[proc_macro_attribute]
pub fn concurrency_limiter(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    limit(AttributeKind::Concurrency, args.into(), item.into()).into()
}

/// Expands the function, or the methods of the block, with their guards. On errors, emits the
/// errors and the unchanged item.
fn limit(kind: AttributeKind, args: TokenStream, item: TokenStream) -> TokenStream {
    let attr = |of_block| Attr {
        kind,
        span: Span::call_site(),
        tokens: args.clone(),
        of_block,
    };
    if is_block(&item) {
        return match syn::parse2::<Block>(item.clone()) {
            Ok(block) => block.limit(attr(true)),
            Err(error) => unchanged_with_error(&item, error),
        };
    }
    let mut func: Func = match syn::parse2(item.clone()) {
        Ok(func) => func,
        Err(error) => return unchanged_with_error(&item, error),
    };
    let mut diagnostics = Diagnostics::default();
    let around = OuterAttrs {
        attrs: vec![attr(false)],
        removed: Vec::new(),
        owner: None,
    };
    match LimitedFn::read(around, &mut func, &mut diagnostics) {
        Ok(limited) => limited.to_token_stream(),
        Err(removed) => {
            func.body = expand::import_removed(&removed, &func.body);
            let errors = diagnostics.into_tokens();
            quote!(#func #errors)
        }
    }
}

fn unchanged_with_error(item: &TokenStream, error: syn::Error) -> TokenStream {
    let error = error.to_compile_error();
    quote!(#item #error)
}
