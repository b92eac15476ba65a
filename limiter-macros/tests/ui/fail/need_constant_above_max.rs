use limiter_core::{Rejection, concurrency_limiter};

const SLOTS: i32 = 3;

#[concurrency_limiter(max = SLOTS, lease = "30s", need = SLOTS + 1)]
async fn export() -> Result<(), Rejection> {
    Ok(())
}

fn main() {}
