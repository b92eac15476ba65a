use limiter_core::{Rejection, concurrency_limiter};

#[concurrency_limiter(lease = "30s")]
async fn export(tenant: &str) -> Result<(), Rejection> {
    let _ = tenant;
    Ok(())
}

fn main() {}
