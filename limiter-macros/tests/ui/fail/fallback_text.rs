use limiter_core::token_limiter;

#[token_limiter(capacity = 5, rate = 1, fallback = "busy")]
async fn search() -> u32 {
    1
}

async fn busy() -> u32 {
    0
}

fn main() {}
