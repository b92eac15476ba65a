use limiter_core::{Rejection, token_limiter};

#[token_limiter]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
