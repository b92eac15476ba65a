use limiter_core::{Rejection, window_limiter};

mod costs {
    pub const EXPORT: usize = 2;
}

#[window_limiter(limit = 5, window = "1m", need = 3 * costs::EXPORT)]
async fn export(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
