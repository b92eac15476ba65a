use limiter_core::{Rejection, token_limiter};

struct Mail;

impl Mail {
    #[token_limiter(capacity = 20, rate = 10)]
    async fn send(&self) -> Result<(), Rejection> {
        Ok(())
    }
}

fn main() {}
