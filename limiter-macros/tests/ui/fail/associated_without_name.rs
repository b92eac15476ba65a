use limiter_core::{Rejection, token_limiter};

struct Mail;

impl Mail {
    #[token_limiter(capacity = 20, rate = 10, group = "of:{to}")]
    async fn send(to: &str) -> Result<Self, Rejection> {
        let _ = to;
        Ok(Self)
    }
}

fn main() {}
