use limiter_core::token_limiter;

struct Outbox;

impl Outbox {
    #[token_limiter(name = "send", capacity = 20, rate = 10, fallback = self.queue)]
    async fn send(&self, to: String) -> u32 {
        to.len() as u32
    }

    #[token_limiter(name = "post", capacity = 20, rate = 10, fallback = self.qeue, pass_args)]
    async fn post(&self, to: String) -> u32 {
        to.len() as u32
    }

    fn queue(&self, to: String) -> u32 {
        to.len() as u32
    }
}

fn main() {}
