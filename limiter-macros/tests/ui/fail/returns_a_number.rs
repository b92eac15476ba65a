use limiter_core::token_limiter;

#[token_limiter(capacity = 20, rate = 10)]
async fn search() -> u32 {
    7
}

fn main() {}
