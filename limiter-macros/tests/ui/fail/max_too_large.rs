use limiter_core::{Rejection, concurrency_limiter};

#[concurrency_limiter(max = 2_000_000)]
async fn export(tenant: &str) -> Result<(), Rejection> {
    let _ = tenant;
    Ok(())
}

fn main() {}
