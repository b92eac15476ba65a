use limiter_core::{Rejection, token_limiter};

const CAPACITY: u32 = 20;
const NEED: u64 = 21;

#[token_limiter(capacity = CAPACITY, rate = 10, need = NEED)]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
