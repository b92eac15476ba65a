use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 5_000_000_000_000, rate = 1_000)]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
