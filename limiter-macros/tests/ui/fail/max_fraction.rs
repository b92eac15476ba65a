use limiter_core::{Rejection, concurrency_limiter};

#[concurrency_limiter(max = 1.5)]
async fn export(tenant: &str) -> Result<(), Rejection> {
    let _ = tenant;
    Ok(())
}

fn main() {}
