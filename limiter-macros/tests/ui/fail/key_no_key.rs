use limiter_core::{Rejection, token_limiter};

struct User;

#[token_limiter(capacity = 20, rate = 10, key = user)]
async fn search(user: User) -> Result<User, Rejection> {
    Ok(user)
}

fn main() {}
