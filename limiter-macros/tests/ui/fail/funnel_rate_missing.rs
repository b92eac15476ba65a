use limiter_core::{Rejection, funnel_limiter};

#[funnel_limiter(capacity = 20)]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
