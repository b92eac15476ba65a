use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 5, rate = 1, penalty = "10/1m")]
async fn login() -> Result<(), Rejection> {
    Ok(())
}

fn main() {}
