//! Calls that count only by their result.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use limiter_core::{Rejection, token_limiter, window_limiter};

use crate::{fresh, is_send, isolated};

#[derive(Debug, PartialEq)]
enum Failure {
    WrongPassword,
    Limited,
}

impl From<Rejection> for Failure {
    fn from(_: Rejection) -> Self {
        Self::Limited
    }
}

impl From<std::num::ParseIntError> for Failure {
    fn from(_: std::num::ParseIntError) -> Self {
        Self::WrongPassword
    }
}

/// Three failed attempts an hour, and as many that succeed as there are.
#[window_limiter(limit = 3, window = "1h", key = "{user}", count_if = Result::is_err)]
async fn login(user: &str, password: &str) -> Result<u32, Failure> {
    tokio::task::yield_now().await;
    if user.is_empty() {
        return Ok(0);
    }
    let number = password.parse()?;
    Ok(number)
}

#[tokio::test]
async fn uncounted_call_is_refunded() {
    let (limiter, _clock) = fresh();
    limiter_core::annotations::with_limiter(limiter.clone(), async {
        for _ in 0..10 {
            assert_eq!(login("ann", "42").await, Ok(42));
            assert_eq!(login("", "x").await, Ok(0), "an early return");
        }
        for _ in 0..3 {
            assert_eq!(login("ann", "x").await, Err(Failure::WrongPassword));
        }
        assert_eq!(login("ann", "42").await, Err(Failure::Limited));
        let ann = limiter.annotation("behaviour::counting::login").unwrap();
        assert_eq!(ann.key(["ann"]).unwrap().peek().await.unwrap().remaining(), 0);
        assert_eq!(ann.key([""]).unwrap().peek().await.unwrap().remaining(), 3);
    })
    .await;
}

struct Reply {
    status: u16,
}

fn busy() -> Reply {
    Reply { status: 429 }
}

const UNAUTHORIZED: u16 = 401;

#[token_limiter(name = "counting.all", capacity = 5, rate = "1/h", fallback = busy)]
#[token_limiter(name = "counting.refused", capacity = 2, rate = "1/h", need = 2, fallback = busy,
    count_if = |reply| reply.status == UNAUTHORIZED)]
#[window_limiter(name = "counting.broken", limit = 2, window = "1h", fallback = busy, count_if = |reply: &Reply| reply.status >= 500)]
async fn fetch(status: u16) -> Reply {
    Reply { status }
}

#[tokio::test]
async fn limits_count_results_independently() {
    let (limiter, _clock) = fresh();
    limiter_core::annotations::with_limiter(limiter.clone(), async {
        let left = async || {
            let mut left = Vec::new();
            for name in ["counting.all", "counting.refused", "counting.broken"] {
                let budget = limiter.annotation(name).unwrap().global().unwrap();
                left.push(budget.peek().await.unwrap().remaining());
            }
            left
        };
        assert_eq!(fetch(200).await.status, 200);
        assert_eq!(left().await, [4, 2, 2]);
        assert_eq!(fetch(503).await.status, 503);
        assert_eq!(left().await, [3, 2, 1]);
        assert_eq!(fetch(401).await.status, 401);
        assert_eq!(left().await, [2, 0, 1]);
        assert_eq!(
            fetch(200).await.status,
            429,
            "no permit is available for the call"
        );
        assert_eq!(left().await, [2, 0, 1], "a denied call refunds nothing");
    })
    .await;
}

#[window_limiter(limit = 3, window = "1h", count_if = |done| !done.0)]
async fn interrupted(panics: bool) -> Flag {
    assert!(!panics, "panics on request");
    std::future::pending::<()>().await;
    Flag(true)
}

#[derive(Debug)]
struct Flag(bool);

impl limiter_core::FromRejection for Flag {
    fn from_rejection(_: Rejection) -> Self {
        Self(false)
    }
}

#[tokio::test]
async fn panicking_or_cancelled_call_stays_charged() {
    let (limiter, _clock) = fresh();
    let of_task = |panics| limiter_core::annotations::with_limiter(limiter.clone(), interrupted(panics));
    assert!(tokio::spawn(of_task(true)).await.unwrap_err().is_panic());
    let cancelled = tokio::time::timeout(std::time::Duration::from_millis(1), of_task(false));
    assert!(cancelled.await.is_err());
    let budget = limiter
        .annotation("behaviour::counting::interrupted")
        .unwrap()
        .global()
        .unwrap();
    assert_eq!(budget.peek().await.unwrap().remaining(), 1);
}

struct Client {
    failures: AtomicUsize,
    sent: usize,
}

#[async_trait]
trait Send2 {
    async fn send(&mut self, to: &str, parts: (u32, String)) -> Result<String, Rejection>;
}

#[async_trait]
impl Send2 for Client {
    #[window_limiter(name = "counting.send", limit = 1, window = "1h", key = "{to}:{count}", when = *count > 0, count_if = is_bad)]
    async fn send(&mut self, to: &str, (count, mut text): (u32, String)) -> Result<String, Rejection> {
        tokio::task::yield_now().await;
        self.sent += count.max(1) as usize;
        text.push_str(to);
        Ok(text)
    }
}

fn is_bad(sent: &Result<String, Rejection>) -> bool {
    sent.as_ref().is_ok_and(|text| text.starts_with("bad"))
}

impl Client {
    fn is_failure(&self, sent: &Result<String, Rejection>) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed);
        is_bad(sent)
    }

    /// The predicate can use a receiver that is a shared reference.
    #[window_limiter(name = "counting.method", limit = 1, window = "1h", count_if = |sent| self.is_failure(sent))]
    async fn method(&self, text: &str) -> Result<String, Rejection> {
        Ok(text.to_owned())
    }
}

#[tokio::test]
async fn methods_are_counted_by_result() {
    isolated(async {
        let mut client = Client {
            failures: AtomicUsize::new(0),
            sent: 0,
        };
        for _ in 0..3 {
            assert!(is_send(client.method("good")).await.is_ok());
        }
        assert!(client.method("bad").await.is_ok() && client.method("good").await.is_err());
        for text in ["good ", "good ", "bad "] {
            let sent = is_send(client.send("ann", (1, text.to_owned()))).await;
            assert_eq!(sent.unwrap(), format!("{text}ann"));
        }
        assert!(client.send("ann", (1, String::new())).await.is_err());
        assert!(
            client.send("ann", (0, "bad".to_owned())).await.is_ok(),
            "not limited"
        );
        assert_eq!(client.sent, 4);
    })
    .await;
}

/// The signature determines the result inside the body, too: coercions, `impl Trait`, no result.
#[window_limiter(limit = 1, window = "1h", count_if = |shown| shown.to_string().is_empty(), fallback = displayable_text)]
async fn coerced(text: &'static str) -> Box<dyn std::fmt::Display + Send> {
    if text == "early" {
        return Box::new(1);
    }
    Box::new(text)
}

fn displayable_text() -> Box<dyn std::fmt::Display + Send> {
    Box::new("limited")
}

#[window_limiter(limit = 1, window = "1h", count_if = Result::is_err)]
async fn opaque(cell: Cell<u32>, number: &str) -> Result<impl Iterator<Item = u32> + use<>, Failure> {
    tokio::task::yield_now().await;
    let number: u32 = number.parse()?;
    Ok(0..number + cell.get())
}

#[window_limiter(limit = 1, window = "1h", count_if = |()| true, fallback = note, pass_args)]
async fn unit((log, _): (&AtomicUsize, u8), mut by: usize) {
    by += 1;
    log.fetch_add(by, Ordering::Relaxed);
}

fn note((log, _): (&AtomicUsize, u8), by: usize) {
    log.fetch_add(by, Ordering::Relaxed);
}

#[tokio::test]
async fn result_type_is_unchanged_by_attribute() {
    isolated(async {
        for text in ["some", "early", "", "late"] {
            let shown = is_send(coerced(text)).await.to_string();
            let expected = match text {
                "early" => "1",
                "late" => "limited",
                other => other,
            };
            assert_eq!(shown, expected);
        }
        for _ in 0..3 {
            assert_eq!(is_send(opaque(Cell::new(1), "2")).await.unwrap().count(), 3);
        }
        assert_eq!(
            opaque(Cell::new(1), "x").await.err(),
            Some(Failure::WrongPassword)
        );
        assert_eq!(opaque(Cell::new(1), "2").await.err(), Some(Failure::Limited));
        let log = AtomicUsize::new(0);
        is_send(unit((&log, 0), 10)).await;
        unit((&log, 0), 100).await;
        assert_eq!(log.into_inner(), 111);
    })
    .await;
}
