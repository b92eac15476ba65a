use limiter_core::{Rejection, window_limiter};

struct Outbox;

#[window_limiter(limit = 5, window = "1m")]
impl Outbox {
    async fn send(&self, to: &str) -> Result<(), Rejection> {
        let _ = to;
        Ok(())
    }

    async fn preview(&self) -> Result<(), Rejection> {
        Ok(())
    }

    fn queue(&self) {}
}

fn main() {}
