use limiter_core::token_limiter;

fn queue(to: &str) -> u32 {
    to.len() as u32
}

#[token_limiter(capacity = 20, rate = 10, fallback = queue, pass_args)]
async fn send(to: String) -> u32 {
    to.len() as u32
}

fn main() {}
