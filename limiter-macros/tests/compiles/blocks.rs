//! An annotated block, and a function with `count_if`, cause no warning and no unsafe code in a
//! crate that allows neither.

#![deny(
    warnings,
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unused,
    unreachable_pub
)]
#![forbid(unsafe_code)]

use limiter_core::{Rejection, token_limiter, window_limiter};

/// Sends.
#[derive(Debug)]
pub struct Outbox {
    id: u32,
}

#[token_limiter(name = "mail", capacity = 20, rate = 10, key = "{self.id}", count_if = Result::is_ok, except(queue))]
#[window_limiter(
    name = "daily",
    limit = 5,
    window = "1d",
    key = "{self.id}",
    except(queue, forward)
)]
impl Outbox {
    /// Sends one.
    ///
    /// # Errors
    ///
    /// When it is limited.
    pub async fn send(&self, (a, b): (u32, u32), _: u32) -> Result<u32, Rejection> {
        if a == b {
            return Ok(a);
        }
        self.queue(a).await?;
        Ok(a + b)
    }

    /// Sends forth.
    ///
    /// # Errors
    ///
    /// When it is limited.
    #[window_limiter(name = "forth", limit = 5, window = "1d", key = "{self.id}", count_if = |sent| sent.as_ref().is_err_and(Rejection::is_limited))]
    pub async fn forward(&mut self, by: u32) -> Result<(), Rejection> {
        self.id += by;
        Ok(())
    }

    async fn queue(&self, a: u32) -> Result<u32, Rejection> {
        std::future::ready(Ok(a + self.id)).await
    }
}

#[test]
fn annotated_methods_of_impl_blocks_compile() {
    let mut outbox = Outbox { id: 1 };
    drop(outbox.send((1, 2), 3));
    drop(outbox.forward(1));
    assert_eq!(limiter_core::annotations::verify_annotations(), Ok(()));
}
