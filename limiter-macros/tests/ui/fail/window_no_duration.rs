use limiter_core::{Rejection, window_limiter};

#[window_limiter(limit = 5, window = seconds)]
async fn search(seconds: u64) -> Result<(), Rejection> {
    let _ = seconds;
    Ok(())
}

fn main() {}
