use limiter_core::{Amount, Rejection, funnel_limiter};

const CAPACITY: Amount = Amount::from_thousandths(1_500);

#[funnel_limiter(capacity = CAPACITY, rate = 1, need = 1.501)]
async fn drain() -> Result<(), Rejection> {
    Ok(())
}

fn main() {}
