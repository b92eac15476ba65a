use limiter_core::{Rejection, concurrency_limiter};

#[concurrency_limiter(max = 4, lease = "2d")]
async fn export(tenant: &str) -> Result<(), Rejection> {
    let _ = tenant;
    Ok(())
}

fn main() {}
