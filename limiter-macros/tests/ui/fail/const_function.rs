use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 20, rate = 10)]
const fn search() -> Result<(), Rejection> {
    Ok(())
}

fn main() {}
