use limiter_core::token_limiter;

async fn other() -> String {
    String::new()
}

#[token_limiter(capacity = 20, rate = 10, fallback = other)]
async fn search(user: &str) -> usize {
    user.len()
}

fn main() {}
