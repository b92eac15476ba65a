use limiter_core::{Rejection, token_limiter};

trait Search {
    #[token_limiter(name = "search", capacity = 20, rate = 10)]
    async fn search(&self) -> Result<(), Rejection>;
}

fn main() {}
