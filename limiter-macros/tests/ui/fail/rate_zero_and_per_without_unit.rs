use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 20, rate = 0, per = 5)]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
