use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 20, rate = 10, on_store_failure = "fail_open")]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
