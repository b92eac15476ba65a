use limiter_core::{Rejection, token_limiter};

#[token_limiter(policy = "search:{user}")]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
