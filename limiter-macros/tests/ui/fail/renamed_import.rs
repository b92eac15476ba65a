use limiter_core::{Rejection, token_limiter, window_limiter as daily};

#[token_limiter(capacity = 20, rate = 10)]
#[daily(name = "daily", limit = 5, window = "1d")]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
