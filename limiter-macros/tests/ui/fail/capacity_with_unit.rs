use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 10k, rate = 10)]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
