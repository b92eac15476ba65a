use limiter_core::token_limiter;

#[token_limiter(capacity = 20, rate = 10)]
async fn search(user: &str) -> Result<(), std::io::Error> {
    let _ = user;
    Ok(())
}

fn main() {}
