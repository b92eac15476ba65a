use limiter_core::token_limiter;

fn queue(to: String, rejection: limiter_core::Rejection) -> u32 {
    drop((to, rejection));
    0
}

#[token_limiter(capacity = 20, rate = 10, fallback = queue)]
async fn send(to: String) -> u32 {
    to.len() as u32
}

fn main() {}
