use limiter_core::{Rejection, concurrency_limiter};

#[concurrency_limiter(max = 4, rate = 10)]
async fn export(tenant: &str) -> Result<(), Rejection> {
    let _ = tenant;
    Ok(())
}

fn main() {}
