use limiter_core::token_limiter;

#[token_limiter(capacity = 20, rate = 10)]
pub struct Search;

fn main() {}
