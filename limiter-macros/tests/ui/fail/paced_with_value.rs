use limiter_core::{Rejection, funnel_limiter};

#[funnel_limiter(capacity = 5, rate = 1, paced = true)]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
