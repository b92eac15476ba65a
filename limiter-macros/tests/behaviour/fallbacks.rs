//! Fallbacks, which return a result for rejected calls.

use limiter_core::{Rejection, funnel_limiter, token_limiter, window_limiter};

use crate::{is_send, isolated};

/// Not `Clone`: it can only be moved.
#[derive(Debug, PartialEq)]
struct Letter(String);

#[derive(Debug, PartialEq)]
enum Receipt {
    Sent(Letter),
    Queued(Letter),
    Refused,
    Why(String),
}

fn refuse() -> Receipt {
    Receipt::Refused
}

async fn refuse_later() -> Receipt {
    tokio::task::yield_now().await;
    Receipt::Refused
}

async fn queue(letter: Letter) -> Receipt {
    Receipt::Queued(letter)
}

fn why(rejection: Rejection) -> Receipt {
    match rejection {
        Rejection::Limited(_) => Receipt::Why("limited".to_owned()),
        Rejection::NeverFits { .. } => Receipt::Why("never fits".to_owned()),
        other => Receipt::Why(other.to_string()),
    }
}

fn queue_with_reason(letter: Letter, cost: u32, rejection: Rejection) -> Receipt {
    drop(letter);
    Receipt::Why(format!("{cost} {}", rejection.is_limited()))
}

#[window_limiter(limit = 1, window = "1m", fallback = refuse)]
async fn to_sync(letter: Letter) -> Receipt {
    Receipt::Sent(letter)
}

#[window_limiter(limit = 1, window = "1m", fallback = self::refuse_later)]
async fn to_async(letter: Letter) -> Receipt {
    Receipt::Sent(letter)
}

#[funnel_limiter(capacity = 1, rate = "1/min", fallback = queue, pass_args)]
async fn with_arguments(letter: Letter) -> Receipt {
    Receipt::Sent(letter)
}

#[token_limiter(capacity = 1, rate = "1/min", need = need, fallback = why, pass_rejection)]
async fn with_rejection(need: u32) -> Receipt {
    let _ = need;
    Receipt::Refused
}

#[token_limiter(capacity = 1, rate = "1/min", fallback = queue_with_reason, pass_args, pass_rejection)]
async fn with_both(mut letter: Letter, cost: u32) -> Receipt {
    letter.0 += &cost.to_string();
    Receipt::Sent(letter)
}

fn letter() -> Letter {
    Letter("dear".to_owned())
}

#[tokio::test]
async fn fallbacks_are_sync_or_async_with_or_without_arguments() {
    isolated(async {
        assert_eq!(to_sync(letter()).await, Receipt::Sent(letter()));
        assert_eq!(to_sync(letter()).await, Receipt::Refused);
        assert_eq!(to_async(letter()).await, Receipt::Sent(letter()));
        assert_eq!(is_send(to_async(letter())).await, Receipt::Refused);
        assert_eq!(with_arguments(letter()).await, Receipt::Sent(letter()));
        assert_eq!(is_send(with_arguments(letter())).await, Receipt::Queued(letter()));
        assert_eq!(with_rejection(1).await, Receipt::Refused);
        assert_eq!(with_rejection(1).await, Receipt::Why("limited".to_owned()));
        assert_eq!(with_rejection(2).await, Receipt::Why("never fits".to_owned()));
        assert_eq!(
            with_both(letter(), 3).await,
            Receipt::Sent(Letter("dear3".to_owned()))
        );
        assert_eq!(
            is_send(with_both(letter(), 3)).await,
            Receipt::Why("3 true".to_owned())
        );
    })
    .await;
}

struct Pair<A, B> {
    first: A,
    second: B,
}

type Point = (u32, u32);

fn apart(
    pair: Pair<Letter, u32>,
    _: &Point,
    nothing: u8,
    (left, right): (Letter, Letter),
    text: String,
) -> String {
    format!(
        "{}{}{nothing}{}{}{text}",
        pair.first.0, pair.second, left.0, right.0
    )
}

/// Patterns of all kinds, destructured for the body, or passed to the fallback as a whole.
#[token_limiter(
    capacity = 1, rate = "1/min", key = "{first.0}:{second}:{x}:{left.0}", need = *second, when = *y > 0,
    fallback = apart, pass_args
)]
async fn destructured(
    Pair { mut first, second }: Pair<Letter, u32>,
    &(x, y): &Point,
    _: u8,
    (left, ref right): (Letter, Letter),
    mut text: String,
) -> String {
    first.0 += "!";
    text += "?";
    format!("{}{second}{x}{y}{}{}{text}", first.0, left.0, right.0)
}

#[tokio::test]
async fn destructured_arguments_move_into_the_fallback() {
    isolated(async {
        let call = || {
            let pair = Pair {
                first: Letter("a".to_owned()),
                second: 1,
            };
            let letters = (Letter("b".to_owned()), Letter("c".to_owned()));
            destructured(pair, &(8, 9), 0, letters, "t".to_owned())
        };
        assert_eq!(call().await, "a!189bct?");
        assert_eq!(is_send(call()).await, "a10bct");
    })
    .await;
}

struct Mailer {
    inner: Inner,
}

struct Inner;

impl Inner {
    async fn spool(&self, letter: Letter) -> Receipt {
        tokio::task::yield_now().await;
        Receipt::Queued(letter)
    }
}

impl Mailer {
    async fn queue(&self, letter: Letter, rejection: Rejection) -> Receipt {
        tokio::task::yield_now().await;
        assert!(rejection.is_limited());
        Receipt::Queued(letter)
    }

    fn count() -> usize {
        42
    }

    fn into_letter(self) -> Letter {
        drop(self);
        letter()
    }

    #[window_limiter(name = "mailer.send", limit = 1, window = "1m", fallback = self.queue, pass_args, pass_rejection)]
    async fn send(&self, letter: Letter) -> Receipt {
        Receipt::Sent(letter)
    }

    #[window_limiter(name = "mailer.spool", limit = 1, window = "1m", fallback = self.inner.spool, pass_args)]
    async fn send_or_spool(&self, letter: Letter) -> Receipt {
        Receipt::Sent(letter)
    }

    #[window_limiter(name = "mailer.total", limit = 1, window = "1m", fallback = Self::count)]
    async fn total(&self) -> usize {
        let _ = self;
        7
    }

    #[window_limiter(name = "mailer.consume", limit = 1, window = "1m", fallback = self.into_letter)]
    async fn consume(self) -> Letter {
        drop(self);
        Letter("eaten".to_owned())
    }
}

#[tokio::test]
async fn fallbacks_are_methods_and_associated_functions() {
    isolated(async {
        let mailer = || Mailer { inner: Inner };
        assert_eq!(mailer().send(letter()).await, Receipt::Sent(letter()));
        assert_eq!(is_send(mailer().send(letter())).await, Receipt::Queued(letter()));
        assert_eq!(mailer().send_or_spool(letter()).await, Receipt::Sent(letter()));
        assert_eq!(mailer().send_or_spool(letter()).await, Receipt::Queued(letter()));
        assert_eq!(mailer().total().await, 7);
        assert_eq!(mailer().total().await, 42);
        assert_eq!(mailer().consume().await, Letter("eaten".to_owned()));
        assert_eq!(mailer().consume().await, letter());
    })
    .await;
}

fn empty<T: Default>() -> Vec<T> {
    vec![T::default()]
}

#[window_limiter(limit = 1, window = "1m", fallback = empty::<T>)]
async fn generic<T: Default>() -> Vec<T> {
    Vec::new()
}

#[window_limiter(limit = 1, window = "1m", fallback = <u32 as Default>::default)]
async fn trait_path() -> u32 {
    7
}

#[tokio::test]
async fn fallbacks_are_generic() {
    isolated(async {
        assert!(generic::<u32>().await.is_empty());
        assert_eq!(generic::<u32>().await, [0]);
        assert_eq!(trait_path().await, 7);
        assert_eq!(trait_path().await, 0);
    })
    .await;
}

fn queue_copies(letter: Letter, (copies, _): (u32, u32)) -> Receipt {
    Receipt::Why(format!("{} {copies}", letter.0))
}

/// Arguments that exist in some configurations only.
#[window_limiter(limit = 1, window = "1m", key = "{copies}", fallback = queue_copies, pass_args)]
async fn configured(
    #[cfg(not(test))] missing: Missing,
    letter: Letter,
    #[cfg(not(test))] (left, right): (Missing, Missing),
    #[cfg(test)] (copies, _): (u32, u32),
) -> Receipt {
    let _ = copies;
    Receipt::Sent(letter)
}

impl Mailer {
    fn configured_queue(&self, letter: Letter) -> Receipt {
        let _ = self;
        Receipt::Queued(letter)
    }

    #[window_limiter(name = "mailer.configured", limit = 1, window = "1m", fallback = self.configured_queue, pass_args)]
    async fn configured(&self, #[cfg(test)] letter: Letter, #[cfg(not(test))] missing: Missing) -> Receipt {
        Receipt::Sent(letter)
    }
}

#[tokio::test]
async fn arguments_of_other_configurations_are_not_passed() {
    isolated(async {
        assert_eq!(configured(letter(), (2, 0)).await, Receipt::Sent(letter()));
        let queued = configured(letter(), (2, 0)).await;
        assert_eq!(queued, Receipt::Why("dear 2".to_owned()));
        let mailer = Mailer { inner: Inner };
        assert_eq!(mailer.configured(letter()).await, Receipt::Sent(letter()));
        assert_eq!(mailer.configured(letter()).await, Receipt::Queued(letter()));
    })
    .await;
}
