use limiter_core::{Rejection, token_limiter};

#[token_limiter(name = "mail", capacity = 5, rate = 1)]
trait Mail {
    async fn send(&self) -> Result<(), Rejection>;
}

fn main() {}
