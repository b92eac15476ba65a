use limiter_core::{Rejection, window_limiter};

#[window_limiter(limit = 5, window = "1d", kind = fixed, align = utc)]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
