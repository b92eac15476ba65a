use limiter_core::{Rejection, window_limiter};

struct Outbox;

#[window_limiter(name = "mail", limit = 5, window = "1m", except(previw, colour))]
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
