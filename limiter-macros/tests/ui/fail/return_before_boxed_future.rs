use std::pin::Pin;

use limiter_core::{Rejection, token_limiter};

type Found = Result<u32, Rejection>;

#[token_limiter(capacity = 20, rate = 10)]
fn search(text: &str) -> Pin<Box<dyn Future<Output = Found> + Send + '_>> {
    let length = || return 1;
    if text.is_empty() {
        return Box::pin(async { Ok(0) });
    }
    let length = length();
    Box::pin(async move { Ok(length) })
}

fn main() {}
