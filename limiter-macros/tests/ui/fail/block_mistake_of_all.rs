use limiter_core::{Rejection, window_limiter};

struct Outbox;

#[window_limiter(name = "mail", limit = 0, window = "1m", rate = 5)]
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
