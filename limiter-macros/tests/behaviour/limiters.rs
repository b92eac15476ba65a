//! Selection of the limiter that decides.

use std::sync::Arc;

use limiter_core::{Limiter, Rejection, window_limiter};

use crate::{fresh, is_send, isolated};

struct App {
    limits: Limiter,
    shared: Arc<Limiter>,
}

struct State<T>(T);

#[window_limiter(limit = 1, window = "1m", limiter = app.limits)]
async fn limited_by_field(app: &App) -> Result<(), Rejection> {
    let _ = app;
    Ok(())
}

#[window_limiter(limit = 1, window = "1m", limiter = app.shared)]
async fn limited_by_arc(State(app): State<Arc<App>>) -> Result<Arc<App>, Rejection> {
    Ok(app)
}

#[window_limiter(limit = 1, window = "1m", limiter = limits)]
async fn limited_by_reference(limits: &Limiter) -> Result<(), Rejection> {
    let _ = limits;
    Ok(())
}

impl App {
    fn limits(&self) -> &Limiter {
        &self.limits
    }

    #[window_limiter(name = "app.own", limit = 1, window = "1m", limiter = self.limits())]
    async fn own(&self) -> Result<(), Rejection> {
        Ok(())
    }
}

#[tokio::test]
async fn limiter_of_attribute_takes_precedence() {
    let app = |limits: Limiter| App {
        shared: Arc::new(limits.clone()),
        limits,
    };
    isolated(async {
        let (one, other) = (app(fresh().0), app(fresh().0));
        assert!(is_send(limited_by_field(&one)).await.is_ok());
        assert!(limited_by_field(&one).await.is_err());
        assert!(limited_by_field(&other).await.is_ok());
        assert!(
            limited_by_reference(&one.limits).await.is_ok()
                && limited_by_reference(&one.limits).await.is_err()
        );
        assert!(one.own().await.is_ok() && one.own().await.is_err() && other.own().await.is_ok());
        let one = limited_by_arc(State(Arc::new(one))).await.unwrap();
        assert!(limited_by_arc(State(one)).await.is_err());
        assert!(limited_by_arc(State(Arc::new(other))).await.is_ok());
    })
    .await;
}

/// A crate that re-exports limiter-core under its own path.
mod reexported {
    pub(super) use limiter_core as limits;
}

#[reexported::limits::window_limiter(limit = 1, window = "1m", crate = reexported::limits)]
async fn under_another_path() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn crate_path_can_be_changed() {
    isolated(async {
        assert!(under_another_path().await.is_ok());
        assert!(under_another_path().await.is_err());
    })
    .await;
}
