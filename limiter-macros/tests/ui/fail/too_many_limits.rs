use limiter_core::{Rejection, token_limiter};

#[token_limiter(name = "n0", capacity = 20, rate = 10)]
#[token_limiter(name = "n1", capacity = 20, rate = 10)]
#[token_limiter(name = "n2", capacity = 20, rate = 10)]
#[token_limiter(name = "n3", capacity = 20, rate = 10)]
#[token_limiter(name = "n4", capacity = 20, rate = 10)]
#[token_limiter(name = "n5", capacity = 20, rate = 10)]
#[token_limiter(name = "n6", capacity = 20, rate = 10)]
#[token_limiter(name = "n7", capacity = 20, rate = 10)]
#[token_limiter(name = "n8", capacity = 20, rate = 10)]
#[token_limiter(name = "n9", capacity = 20, rate = 10)]
#[token_limiter(name = "n10", capacity = 20, rate = 10)]
#[token_limiter(name = "n11", capacity = 20, rate = 10)]
#[token_limiter(name = "n12", capacity = 20, rate = 10)]
#[token_limiter(name = "n13", capacity = 20, rate = 10)]
#[token_limiter(name = "n14", capacity = 20, rate = 10)]
#[token_limiter(name = "n15", capacity = 20, rate = 10)]
#[token_limiter(name = "n16", capacity = 20, rate = 10)]
async fn search() -> Result<(), Rejection> {
    Ok(())
}

fn main() {}
