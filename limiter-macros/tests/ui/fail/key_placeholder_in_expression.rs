use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 20, rate = 10, key = limiter_core::Key::from("user:{user}"))]
#[token_limiter(name = "daily", capacity = 20, rate = 10, key = concat!("user:", "{user.id}"), group = &"{user}")]
#[token_limiter(name = "formatted", capacity = 20, rate = 10, key = format!("user:{user}"))]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
