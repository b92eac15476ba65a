use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 4 * 5, rate = 10, need = (20 + 1))]
async fn search() -> Result<(), Rejection> {
    Ok(())
}

fn main() {}
