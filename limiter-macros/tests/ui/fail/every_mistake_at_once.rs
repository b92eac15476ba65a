use limiter_core::{token_limiter, window_limiter};

#[token_limiter(capacity = 0, rte = 10, key = "{usr}", need = -1, wait = 5, pass_args)]
#[window_limiter(limit = 0.5, window = "soon", key = "{user:?}", fallback = other(), pass_rejection = yes)]
async fn search(user: &str) -> impl Iterator<Item = u32> {
    let _ = user;
    0..3
}

fn main() {}
