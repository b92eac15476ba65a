use limiter_core::{Limiter, Rejection};

/// Call it once, at the start of the program; clones of the limiter are cheap.
async fn connect() -> Result<Limiter, Box<dyn std::error::Error>> {
    let limits = Limiter::redis("redis://localhost").namespace("ENVIRONMENT").app("APP").build()?;
    limits.redis_registry()?.follow().synced().await?;
    Ok(limits)
}

async fn require_permit(limits: &Limiter, key: &str) -> Result<(), Rejection> {
    limits.named("POLICY").check(key).await?.require()?;
    Ok(())
}
