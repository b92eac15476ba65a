//! The functions that can be annotated.

use std::cell::Cell;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use limiter_core::{FromRejection, Rejection, token_limiter, window_limiter};

use crate::{is_send, isolated};

struct Service {
    id: u32,
    calls: AtomicUsize,
}

impl Service {
    fn new(id: u32) -> Self {
        Self {
            id,
            calls: AtomicUsize::new(0),
        }
    }

    #[window_limiter(name = "by_ref", limit = 1, window = "1m", key = "{self.id}")]
    async fn by_ref(&self) -> Result<u32, Rejection> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(self.id)
    }

    #[window_limiter(name = "by_mut", limit = 1, window = "1m", key = self.id)]
    async fn by_mut(&mut self, id: u32) -> Result<u32, Rejection> {
        let before = std::mem::replace(&mut self.id, id);
        Ok(before)
    }

    #[window_limiter(name = "by_value", limit = 1, window = "1m", key = "{self.id}")]
    async fn by_value(self) -> Result<Self, Rejection> {
        Ok(self)
    }

    #[window_limiter(name = "by_arc", limit = 1, window = "1m", key = "{self.id}")]
    async fn by_arc(self: Arc<Self>) -> Result<u32, Rejection> {
        Ok(self.id)
    }

    #[window_limiter(name = "associated", limit = 1, window = "1m")]
    async fn associated() -> Result<Self, Rejection> {
        Ok(Self::new(0))
    }
}

#[tokio::test]
async fn methods_with_all_receivers_are_limited() {
    isolated(async {
        let mut service = Service::new(1);
        assert_eq!(service.by_ref().await.unwrap(), 1);
        assert!(service.by_ref().await.is_err());
        assert_eq!(
            service.calls.load(Ordering::Relaxed),
            1,
            "a rejected body does not run"
        );
        assert!(Service::new(2).by_ref().await.is_ok());

        assert_eq!(service.by_mut(3).await.unwrap(), 1);
        assert_eq!(service.by_mut(3).await.unwrap(), 3);
        assert!(service.by_mut(3).await.is_err());

        assert!(Service::new(1).by_value().await.is_ok());
        assert!(Service::new(1).by_value().await.is_err());
        let shared = Arc::new(service);
        assert!(Arc::clone(&shared).by_arc().await.is_ok());
        assert!(shared.by_arc().await.is_err());
        assert!(Service::associated().await.is_ok());
        assert!(Service::associated().await.is_err());
    })
    .await;
}

#[token_limiter(capacity = 1, rate = "1/h", key = value)]
async fn generic<T, const N: usize>(value: &T, rest: [T; N]) -> Result<String, Rejection>
where
    T: Display + Clone,
{
    Ok(format!("{value}{}", rest.map(|value| value.to_string()).concat()))
}

#[token_limiter(capacity = N, rate = "1/h")]
async fn sized<const N: usize>() -> Result<usize, Rejection> {
    Ok(N)
}

#[token_limiter(capacity = 1, rate = "1/h", key = "{name}")]
async fn borrowed<'a>(name: &'a str, _other: &str) -> Result<&'a str, Rejection> {
    Ok(name)
}

#[token_limiter(capacity = 1, rate = "1/h", key = "{name}")]
async fn impl_argument(name: impl AsRef<str> + Display + Send) -> Result<usize, Rejection> {
    Ok(name.as_ref().len())
}

#[token_limiter(capacity = 1, rate = "1/h", fallback = nothing)]
async fn impl_return(count: u32) -> impl Iterator<Item = u32> {
    (0..count).collect::<Vec<_>>().into_iter()
}

fn nothing() -> std::vec::IntoIter<u32> {
    Vec::new().into_iter()
}

#[token_limiter(capacity = 1, rate = "1/h")]
async fn nested_impl(count: u32) -> Result<impl Iterator<Item = u32>, Rejection> {
    Ok(0..count)
}

#[tokio::test]
async fn generics_lifetimes_and_impl_trait_are_supported() {
    isolated(async {
        assert_eq!(generic(&1, [2, 3]).await.unwrap(), "123");
        assert!(generic(&1, []).await.is_err());
        assert_eq!(sized::<1>().await.unwrap(), 1);
        assert!(sized::<1>().await.is_err());
        assert_eq!(borrowed("a", "b").await.unwrap(), "a");
        assert!(borrowed("a", "b").await.is_err());
        assert_eq!(impl_argument("abc").await.unwrap(), 3);
        assert!(impl_argument(String::from("abc")).await.is_err());
        assert_eq!(impl_return(3).await.count(), 3);
        assert_eq!(impl_return(3).await.count(), 0);
        assert_eq!(nested_impl(3).await.unwrap().count(), 3);
        assert!(nested_impl(3).await.is_err());
    })
    .await;
}

#[token_limiter(capacity = 5, rate = "1/h")]
async fn early(text: &str) -> Result<i32, Failure> {
    #![allow(clippy::unused_async)]
    if text.is_empty() {
        return Ok(0);
    }
    let number: i32 = text.parse()?;
    Ok(number)
}

#[derive(Debug)]
enum Failure {
    Parse,
    Limited,
}

impl From<std::num::ParseIntError> for Failure {
    fn from(_: std::num::ParseIntError) -> Self {
        Self::Parse
    }
}

impl From<Rejection> for Failure {
    fn from(_: Rejection) -> Self {
        Self::Limited
    }
}

#[tokio::test]
async fn question_marks_and_early_returns_are_supported() {
    isolated(async {
        assert_eq!(early("").await.unwrap(), 0);
        assert_eq!(early("12").await.unwrap(), 12);
        assert!(matches!(early("x").await, Err(Failure::Parse)));
        for _ in 0..2 {
            let _ = early("1").await;
        }
        assert!(matches!(early("1").await, Err(Failure::Limited)));
    })
    .await;
}

#[derive(Debug, PartialEq)]
enum Receipt {
    Sent,
    Limited,
}

impl FromRejection for Receipt {
    fn from_rejection(_: Rejection) -> Self {
        Self::Limited
    }
}

#[window_limiter(limit = 1, window = "1m")]
async fn own_type() -> Receipt {
    Receipt::Sent
}

#[tokio::test]
async fn custom_return_type_is_supported() {
    isolated(async {
        assert_eq!(own_type().await, Receipt::Sent);
        assert_eq!(own_type().await, Receipt::Limited);
    })
    .await;
}

#[async_trait]
trait Mail {
    async fn send(&self, to: String, parts: (u32, String)) -> Result<String, Rejection>;

    async fn queue(&mut self, text: &str) -> Receipt;

    async fn nothing(&self);

    async fn forward(&self, parts: &(u32, String), to: &str) -> String;

    #[window_limiter(name = "mail.provided", limit = 1, window = "1m")]
    async fn provided(&self) -> Receipt {
        Receipt::Sent
    }
}

#[derive(Default)]
struct Smtp {
    host: String,
    queued: usize,
    limits: Option<limiter_core::Limiter>,
}

impl Smtp {
    fn on_limited(&mut self, text: &str) -> Receipt {
        self.queued += text.len();
        Receipt::Limited
    }

    fn on_forward(&self, parts: &(u32, String), to: &str) -> String {
        format!("{}: not {}{}{to}", self.host, parts.0, parts.1)
    }

    fn drop_it(&self) {
        assert!(self.limits.is_none());
    }
}

#[async_trait]
impl Mail for Smtp {
    #[window_limiter(name = "mail.send", limit = 1, window = "1m", key = "{self.host}:{to}:{count}", need = *count)]
    async fn send(&self, to: String, (count, text): (u32, String)) -> Result<String, Rejection> {
        tokio::task::yield_now().await;
        Ok(format!("{to}{count}{text}"))
    }

    #[window_limiter(name = "mail.queue", limit = 1, window = "1m", fallback = self.on_limited, pass_args)]
    async fn queue(&mut self, text: &str) -> Receipt {
        tokio::task::yield_now().await;
        drop(text.to_owned());
        Receipt::Sent
    }

    /// `#[async_trait]` leaves the pattern of a reference in the signature.
    #[window_limiter(
        name = "mail.forward", limit = 1, window = "1m", key = "{count}", fallback = self.on_forward, pass_args
    )]
    async fn forward(&self, (count, text): &(u32, String), to: &str) -> String {
        tokio::task::yield_now().await;
        format!("{count}{text}{to}")
    }

    #[window_limiter(name = "mail.nothing", limit = 1, window = "1m", fallback = self.drop_it)]
    async fn nothing(&self) {}
}

#[tokio::test]
async fn methods_under_async_trait_are_limited() {
    isolated(async {
        let mut smtp = Smtp {
            host: "a".to_owned(),
            ..Smtp::default()
        };
        let send = |to: &str| smtp.send(to.to_owned(), (1, "text".to_owned()));
        assert_eq!(is_send(send("ann")).await.unwrap(), "ann1text");
        assert!(send("ann").await.is_err());
        assert!(send("bob").await.is_ok());
        assert!(matches!(
            smtp.send("eve".to_owned(), (2, String::new())).await,
            Err(Rejection::NeverFits { .. })
        ));

        assert_eq!(is_send(smtp.queue("a")).await, Receipt::Sent);
        assert_eq!(smtp.queue("abc").await, Receipt::Limited);
        assert_eq!(smtp.queued, 3);
        let parts = (7, "text".to_owned());
        assert_eq!(is_send(smtp.forward(&parts, "bob")).await, "7textbob");
        assert_eq!(smtp.forward(&parts, "bob").await, "a: not 7textbob");
        smtp.nothing().await;
        smtp.nothing().await;
        assert_eq!(smtp.provided().await, Receipt::Sent);
        assert_eq!(smtp.provided().await, Receipt::Limited);
    })
    .await;
}

trait Native {
    async fn ask(&self) -> Receipt;
}

impl Native for Smtp {
    #[window_limiter(name = "native.ask", limit = 1, window = "1m", key = "{self.host}")]
    async fn ask(&self) -> Receipt {
        Receipt::Sent
    }
}

#[tokio::test]
async fn async_functions_in_traits_are_limited() {
    isolated(async {
        let smtp = Smtp::default();
        assert_eq!(smtp.ask().await, Receipt::Sent);
        assert_eq!(smtp.ask().await, Receipt::Limited);
    })
    .await;
}

/// The key of a macro's function refers to the macro's argument.
macro_rules! limited {
    ($name:ident, $limit:literal, $cost:expr) => {
        #[window_limiter(limit = $limit, window = "1m", key = "{name}", need = $cost)]
        async fn $name(name: &str) -> Result<usize, Rejection> {
            Ok(name.len())
        }
    };
}
limited!(written_by_a_macro, 3, 1 + 1);

#[tokio::test]
async fn functions_generated_by_macro_are_limited() {
    isolated(async {
        assert!(written_by_a_macro("ann").await.is_ok());
        assert!(written_by_a_macro("ann").await.is_err());
    })
    .await;
}

/// The fragments of a macro reach the attribute in invisible groups.
macro_rules! from_fragments {
    ($visibility:vis $name:ident($argument:ident: $of:ty) -> $returned:ty $body:block) => {
        #[window_limiter(limit = 1, window = "1m", key = "{name}")]
        $visibility async fn $name($argument: $of) -> $returned $body
    };
    (impl $service:ident $first:block $second:block) => {
        struct $service;

        #[window_limiter(name = "shapes.fragments", limit = 1, window = "1m")]
        impl $service {
            async fn first(&self) -> Result<u32, Rejection> $first

            async fn second(&self) -> Result<u32, Rejection> $second

            async fn third(&self) -> Result<u32, Rejection> {
                Ok(3)
            }
        }
    };
}
from_fragments!(pub(super) by_fragments(name: &str) -> Result<usize, Rejection> { Ok(name.len()) });
from_fragments!(impl Fragments { Ok(1) } { Ok(2) });

#[tokio::test]
async fn functions_of_macro_fragments_are_limited() {
    isolated(async {
        assert!(by_fragments("ann").await.is_ok() && by_fragments("ann").await.is_err());
        assert!(Fragments.first().await.is_ok() && Fragments.first().await.is_err());
        assert!(Fragments.second().await.is_ok() && Fragments.second().await.is_err());
        assert!(Fragments.third().await.is_ok() && Fragments.third().await.is_err());
    })
    .await;
}

/// Notes when it is dropped.
struct Noisy<'a>(&'static str, &'a Cell<String>);

impl Drop for Noisy<'_> {
    fn drop(&mut self) {
        self.1.set(self.1.take() + self.0);
    }
}

#[token_limiter(capacity = 5, rate = 1)]
async fn limited_order(a: Noisy<'_>, _: Noisy<'_>, b: Noisy<'_>) -> Result<(), Rejection> {
    let _inner = (&a, &b);
    Ok(())
}

async fn plain_order(a: Noisy<'_>, _: Noisy<'_>, b: Noisy<'_>) -> Result<(), Rejection> {
    let _inner = (&a, &b);
    Ok(())
}

#[tokio::test]
async fn arguments_are_dropped_in_order_of_plain_function() {
    isolated(async {
        let log = Cell::new(String::new());
        plain_order(Noisy("a", &log), Noisy("_", &log), Noisy("b", &log))
            .await
            .unwrap();
        let plain = log.take();
        limited_order(Noisy("a", &log), Noisy("_", &log), Noisy("b", &log))
            .await
            .unwrap();
        assert_eq!(log.take(), plain);
    })
    .await;
}

/// Holds a lock guard while its key is computed; the guard is gone before the first await.
#[token_limiter(capacity = 1, rate = 1, key = names.lock().unwrap().first().cloned().unwrap_or_default(), when = !names.lock().unwrap().is_empty())]
async fn locks(names: &std::sync::Mutex<Vec<String>>) -> Result<(), Rejection> {
    let _ = names;
    Ok(())
}

/// `Cell` is Send but not Sync: no reference to it may live across an await.
#[token_limiter(capacity = 5, rate = 1, key = cell.get(), fallback = cell_fallback, pass_args)]
async fn not_sync(cell: Cell<u32>, (other, _): (Cell<u32>, u8)) -> u32 {
    tokio::task::yield_now().await;
    cell.get() + other.get()
}

async fn cell_fallback(cell: Cell<u32>, (other, _): (Cell<u32>, u8)) -> u32 {
    tokio::task::yield_now().await;
    cell.get() + other.get()
}

#[tokio::test]
async fn future_holds_no_borrow_across_first_await() {
    isolated(async {
        let names = std::sync::Mutex::new(vec!["ann".to_owned()]);
        assert!(is_send(locks(&names)).await.is_ok());
        assert!(locks(&names).await.is_err());
        assert_eq!(is_send(not_sync(Cell::new(1), (Cell::new(2), 0))).await, 3);
    })
    .await;
}

/// Items of a body are not visible to the attribute, and names of the attribute are not visible to
/// the body.
#[token_limiter(capacity = 1, rate = 1, key = helper())]
async fn hygienic() -> Result<&'static str, Rejection> {
    fn helper() -> &'static str {
        "inner"
    }
    let __limiter_refused = helper();
    Ok(__limiter_refused)
}

fn helper() -> &'static str {
    "outer"
}

#[tokio::test]
async fn names_in_attribute_and_body_do_not_conflict() {
    isolated(async {
        assert_eq!(hygienic().await.unwrap(), "inner");
    })
    .await;
}

mod limits {
    pub(super) const LIMIT: u32 = 1;
}

/// The attribute cannot see `T` and `SIZE`.
struct Sized<T, const SIZE: u64>(T);

trait Tier {
    const LIMIT: u32;
}

impl Tier for u8 {
    const LIMIT: u32 = 2;
}

impl<T: Tier, const SIZE: u64> Sized<T, SIZE> {
    #[token_limiter(name = "sized.size", capacity = SIZE, rate = "1/h")]
    async fn size(&self) -> Result<&T, Rejection> {
        Ok(&self.0)
    }

    #[window_limiter(name = "sized.tier", limit = T::LIMIT, window = std::time::Duration::from_secs(SIZE))]
    async fn tier(&self) -> Result<&T, Rejection> {
        Ok(&self.0)
    }

    #[window_limiter(name = "sized.module", limit = limits::LIMIT, window = "1m")]
    async fn module(&self) -> Result<&T, Rejection> {
        Ok(&self.0)
    }

    #[token_limiter(name = "sized.associated", capacity = T::LIMIT, rate = "1/h", need = T::LIMIT)]
    async fn associated() -> Result<(), Rejection> {
        Ok(())
    }

    #[token_limiter(name = "sized.parameter", capacity = { SIZE }, rate = "1/h", need = { SIZE })]
    async fn parameter() -> Result<(), Rejection> {
        Ok(())
    }
}

#[tokio::test]
async fn methods_of_generic_impl_are_limited() {
    isolated(async {
        let sized = Sized::<u8, 1>(0);
        assert!(sized.size().await.is_ok() && sized.size().await.is_err());
        assert!(sized.tier().await.is_ok() && sized.tier().await.is_ok() && sized.tier().await.is_err());
        assert!(sized.module().await.is_ok() && sized.module().await.is_err());
        assert!(Sized::<u8, 1>::associated().await.is_ok() && Sized::<u8, 1>::associated().await.is_err());
        assert!(Sized::<u8, 1>::parameter().await.is_ok() && Sized::<u8, 1>::parameter().await.is_err());
    })
    .await;
}

#[async_trait]
trait Twice {
    #[token_limiter(name = "twice.burst", capacity = 1, rate = "1/s")]
    #[window_limiter(name = "twice.daily", limit = 5, window = "1d")]
    async fn twice(&self) -> Result<(), Rejection> {
        Ok(())
    }
}

impl Twice for u8 {}

#[tokio::test]
async fn several_limits_under_async_trait_are_applied() {
    isolated(async {
        assert!(0.twice().await.is_ok());
        let rejection = 0.twice().await.unwrap_err();
        assert_eq!(rejection.decision().unwrap().limits().len(), 2);
    })
    .await;
}

type Boxed<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

#[window_limiter(limit = 1, window = "1m", key = "{name}", fallback = unnamed, pass_args)]
fn boxed_by_hand(
    name: &str,
) -> std::pin::Pin<std::boxed::Box<dyn Future<Output = Result<usize, Rejection>> + Send + '_>> {
    std::boxed::Box::pin(async move {
        tokio::task::yield_now().await;
        Ok(name.len())
    })
}

fn unnamed(name: &str) -> Boxed<'_, Result<usize, Rejection>> {
    Box::pin(async move { Ok(name.len() * 100) })
}

/// Statements of the body that destructure an argument are no parameters of the function.
#[window_limiter(limit = 1, window = "1m", key = user.unwrap_or("anonymous"))]
fn boxed_with_statements<'a>(
    user: Option<&'a str>,
    pair: (u32, u32),
) -> std::pin::Pin<Box<dyn Future<Output = Result<String, Rejection>> + Send + 'a>> {
    Box::pin(async move {
        let Some(user) = user else {
            return Ok("anonymous".to_owned());
        };
        let (left, right) = pair;
        Ok(format!("{user}{left}{right}"))
    })
}

/// The key uses a value that is not `Send` while it is computed.
#[window_limiter(limit = 1, window = "1m", key = std::rc::Rc::new(id))]
async fn keyed_by_rc(id: u32) -> Result<u32, Rejection> {
    Ok(id)
}

#[tokio::test]
async fn handwritten_boxed_future_is_limited() {
    isolated(async {
        assert_eq!(is_send(boxed_by_hand("ann")).await.unwrap(), 3);
        assert_eq!(boxed_by_hand("ann").await.unwrap(), 300);
        assert_eq!(boxed_with_statements(Some("ann"), (1, 2)).await.unwrap(), "ann12");
        assert!(boxed_with_statements(Some("ann"), (1, 2)).await.is_err());
        assert_eq!(boxed_with_statements(None, (1, 2)).await.unwrap(), "anonymous");
        assert!(is_send(keyed_by_rc(1)).await.is_ok());
        assert!(keyed_by_rc(1).await.is_err());
    })
    .await;
}
