use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 5, rate = 1, count_if = |found| *found.as_ref().unwrap_or(&0) > user.len())]
async fn search(user: String) -> Result<usize, Rejection> {
    Ok(user.len())
}

fn main() {}
