use limiter_core::token_limiter;

#[token_limiter(capacity = 20, rate = 10)]
async fn search() -> impl Iterator<Item = u32> {
    0..3
}

fn main() {}
