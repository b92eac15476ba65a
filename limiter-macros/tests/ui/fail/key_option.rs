use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 20, rate = 10, key = user)]
async fn search(user: Option<String>) -> Result<(), Rejection> {
    drop(user);
    Ok(())
}

fn main() {}
