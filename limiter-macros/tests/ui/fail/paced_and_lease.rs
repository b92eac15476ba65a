use limiter_core::{Rejection, funnel_limiter};

#[funnel_limiter(capacity = 5, rate = 1, paced, lease = "1s")]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
