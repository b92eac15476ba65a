use limiter_core::token_limiter;

fn other() -> u32 {
    0
}

#[token_limiter(capacity = 20, rate = 10, fallback = other, pass_args)]
async fn search(user: &str) -> u32 {
    user.len() as u32
}

fn main() {}
