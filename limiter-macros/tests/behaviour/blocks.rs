//! Attributes on `impl` blocks.

use std::fmt::Display;

use async_trait::async_trait;
use limiter_core::annotations::annotations;
use limiter_core::{Rejection, token_limiter, window_limiter};

use crate::{fresh, is_send, isolated};

#[derive(Debug, PartialEq)]
enum Receipt {
    Sent(String),
    Queued(String),
    Limited,
}

impl limiter_core::FromRejection for Receipt {
    fn from_rejection(_: Rejection) -> Self {
        Self::Limited
    }
}

struct Outbox {
    id: u32,
}

/// Each of its methods has its own budget.
#[window_limiter(
    name = "blocks.mail",
    limit = 1,
    window = "1m",
    key = "{self.id}",
    except(queue, preview)
)]
impl Outbox {
    const SIZE: usize = { 1 + 1 };

    /// Is limited.
    async fn send(&self, text: &str) -> Receipt {
        Receipt::Sent(text.to_owned())
    }

    /// Has its own budget.
    async fn forward(&mut self, text: &str) -> Receipt {
        self.id += 1;
        Receipt::Sent(text.to_owned())
    }

    async fn queue(&self, text: &str) -> Receipt {
        Receipt::Queued(text.to_owned())
    }

    /// Excluded from the block's limit, and limited separately.
    #[window_limiter(name = "blocks.preview", limit = 2, window = "1m", fallback = self.queue, pass_args)]
    async fn preview(&self, text: &str) -> Receipt {
        Receipt::Sent(text.to_owned())
    }

    /// Under the block's limit and its own, in one decision.
    #[token_limiter(
        name = "blocks.burst",
        capacity = 5,
        rate = "1/s",
        key = "{self.id}",
        need = 3,
        wait = "1ms"
    )]
    async fn both(&self) -> Result<usize, Rejection> {
        Ok(Self::SIZE)
    }

    fn sync(&self) -> u32 {
        self.id
    }
}

#[tokio::test]
async fn each_async_method_has_its_own_budget() {
    isolated(async {
        let mut outbox = Outbox { id: 1 };
        let sent = |text: &str| Receipt::Sent(text.to_owned());
        assert_eq!(is_send(outbox.send("a")).await, sent("a"));
        assert_eq!(outbox.send("a").await, Receipt::Limited);
        assert_eq!(outbox.forward("b").await, sent("b"));
        assert_eq!(outbox.sync(), 2);
        assert_eq!(outbox.send("a").await, sent("a"), "another key");
        for _ in 0..5 {
            assert_eq!(outbox.queue("c").await, Receipt::Queued("c".to_owned()));
        }
        assert_eq!(outbox.preview("d").await, sent("d"));
        assert_eq!(outbox.preview("d").await, sent("d"));
        assert_eq!(outbox.preview("d").await, Receipt::Queued("d".to_owned()));
    })
    .await;
}

#[tokio::test]
async fn limits_of_method_and_block_are_one_decision() {
    let (limiter, clock) = fresh();
    limiter_core::annotations::with_limiter(limiter.clone(), async {
        let outbox = Outbox { id: 7 };
        assert_eq!(outbox.both().await.unwrap(), 2);
        let (denied, ()) = tokio::join!(outbox.both(), async {
            clock.advance(std::time::Duration::from_millis(1));
        });
        assert!(denied.is_err());
        let left = async |name| {
            let budget = limiter.annotation(name).unwrap().key([7]).unwrap();
            budget.peek().await.unwrap().remaining()
        };
        assert_eq!(left("blocks.mail::both").await, 0);
        assert_eq!(left("blocks.burst").await, 2, "a denied call charges nothing");
    })
    .await;
}

#[test]
fn each_method_is_listed_at_its_line() {
    let all = annotations();
    let find = |name: &str| all.iter().find(|site| site.name() == name).unwrap();
    let (send, forward) = (find("blocks.mail::send"), find("blocks.mail::forward"));
    assert_eq!(send.function(), "behaviour::blocks::Outbox::send");
    assert!(send.file().ends_with("blocks.rs"));
    // Documentation, a signature, a body of three lines and an empty line are between the methods.
    assert_eq!(forward.line(), send.line() + 5);
    assert!(all.iter().all(|site| site.name() != "blocks.mail::preview"));
}

struct Shop<T, const N: u64>(T);

/// One budget for all, and a second limit for each.
#[token_limiter(group = "blocks.shop", capacity = N, rate = "1/h")]
#[limiter_core::window_limiter(
    name = "blocks.each",
    limit = 2,
    window = "1h",
    group = "blocks.shop",
    except(sell)
)]
impl<T: Display, const N: u64> Shop<T, N> {
    async fn buy(&self) -> Result<String, Rejection> {
        Ok(self.0.to_string())
    }

    async fn sell(&self) -> Result<String, Rejection> {
        Ok(self.0.to_string())
    }

    async fn new(value: T) -> Result<Self, Rejection> {
        Ok(Self(value))
    }
}

#[tokio::test]
async fn block_with_group_has_one_shared_budget() {
    isolated(async {
        let shop = Shop::<_, 5>::new(1).await.unwrap();
        assert_eq!(shop.buy().await.unwrap(), "1");
        assert!(shop.buy().await.is_ok());
        assert!(shop.buy().await.is_err(), "two of each");
        assert!(shop.sell().await.is_ok() && shop.sell().await.is_ok());
        assert!(shop.sell().await.is_err(), "five of all");
        assert!(Shop::<_, 5>::new(1).await.is_err());
    })
    .await;
}

#[async_trait]
trait Mail {
    async fn send(&self, to: &str) -> Receipt;
    async fn queue(&self, to: &str) -> Receipt;
    fn name(&self) -> &'static str;
}

struct Smtp;
struct Lmtp;

#[window_limiter(name = "blocks.smtp", limit = 1, window = "1m", key = "{to}", fallback = self.queue, pass_args, except(queue))]
#[async_trait]
impl Mail for Smtp {
    async fn send(&self, to: &str) -> Receipt {
        tokio::task::yield_now().await;
        Receipt::Sent(to.to_owned())
    }

    async fn queue(&self, to: &str) -> Receipt {
        Receipt::Queued(to.to_owned())
    }

    fn name(&self) -> &'static str {
        "smtp"
    }
}

/// The other way round: the methods have lost their `async`.
#[async_trait]
#[window_limiter(name = "blocks.lmtp", limit = 1, window = "1m", key = "{to}", count_if = |receipt| matches!(receipt, Receipt::Sent(to) if to == "ann"))]
impl Mail for Lmtp {
    async fn send(&self, to: &str) -> Receipt {
        tokio::task::yield_now().await;
        Receipt::Sent(to.to_owned())
    }

    async fn queue(&self, to: &str) -> Receipt {
        Receipt::Queued(to.to_owned())
    }

    fn name(&self) -> &'static str {
        "lmtp"
    }
}

#[tokio::test]
async fn blocks_under_async_trait_are_limited() {
    isolated(async {
        let (sent, queued) = (
            |to: &str| Receipt::Sent(to.to_owned()),
            |to: &str| Receipt::Queued(to.to_owned()),
        );
        assert_eq!(is_send(Smtp.send("ann")).await, sent("ann"));
        assert_eq!(Smtp.send("ann").await, queued("ann"));
        assert_eq!(Smtp.queue("ann").await, queued("ann"));
        assert_eq!(is_send(Lmtp.send("ann")).await, sent("ann"));
        assert_eq!(Lmtp.send("ann").await, Receipt::Limited);
        for _ in 0..3 {
            assert_eq!(Lmtp.send("bob").await, sent("bob"));
            assert_eq!(Lmtp.queue("ann").await, queued("ann"), "the call is not counted");
        }
        assert_eq!((Smtp.name(), Lmtp.name()), ("smtp", "lmtp"));
    })
    .await;
}

trait Native {
    async fn request(&self) -> Receipt;
}

#[window_limiter(name = "blocks.native", limit = 1, window = "1m")]
impl Native for Outbox {
    async fn request(&self) -> Receipt {
        Receipt::Sent(String::new())
    }
}

#[tokio::test]
async fn async_functions_of_trait_are_limited() {
    isolated(async {
        let outbox = Outbox { id: 1 };
        assert_eq!(outbox.request().await, Receipt::Sent(String::new()));
        assert_eq!(outbox.request().await, Receipt::Limited);
    })
    .await;
}
