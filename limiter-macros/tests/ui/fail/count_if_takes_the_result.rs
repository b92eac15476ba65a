use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 5, rate = 1, count_if = failed)]
async fn search(user: &str) -> Result<u32, Rejection> {
    let _ = user;
    Ok(1)
}

fn failed(result: Result<u32, Rejection>) -> bool {
    result.is_err()
}

fn main() {}
