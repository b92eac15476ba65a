async fn require_permit(key: &str) -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limiter::redis("redis://localhost").namespace("ENVIRONMENT").app("APP").build()?;
    limits.redis_registry()?.follow().synced().await?;
    limits.named("POLICY").check(key).await?.require()?;
    Ok(())
}
