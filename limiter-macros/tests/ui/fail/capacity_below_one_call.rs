use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 0.5, rate = 0.5)]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
