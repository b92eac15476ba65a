use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 5, rate = 1, paced)]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
