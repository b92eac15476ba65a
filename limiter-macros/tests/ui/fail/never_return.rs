use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 20, rate = 10, fallback = stop, pass_rejection)]
async fn serve() -> ! {
    loop {}
}

fn stop(rejection: Rejection) -> ! {
    panic!("{rejection}")
}

fn main() {}
