//! Permits that are held while a function runs.

use std::time::Duration;

use limiter_core::annotations::with_limiter;
use limiter_core::{Policy, Rejection, StoreErrorKind, concurrency_limiter, token_limiter, window_limiter};
use tokio::sync::oneshot;

use crate::{fresh, is_send, isolated};

#[concurrency_limiter(max = 2, lease = "10s", key = "{tenant}")]
async fn export(tenant: &str, until: oneshot::Receiver<()>) -> Result<String, Rejection> {
    let _ = until.await;
    if tenant == "early" {
        return Ok("early".to_owned());
    }
    Ok(tenant.to_owned())
}

fn policy(max: u32) -> Policy {
    let name = concat!(module_path!(), "::export");
    Policy::concurrency(name).max(max).lease("10s").build().unwrap()
}

#[tokio::test]
async fn permit_is_held_until_body_ends() {
    let (limiter, _) = fresh();
    with_limiter(limiter.clone(), async {
        for tenant in ["ann", "early"] {
            let (done, until) = oneshot::channel();
            let running = is_send(export(tenant, until));
            let mut running = std::pin::pin!(running);
            assert!(futures_pending(running.as_mut()).await);
            assert_eq!(limiter.peek(&policy(2), tenant).await.unwrap().remaining(), 1);
            done.send(()).unwrap();
            assert_eq!(running.await.unwrap(), tenant);
            assert_eq!(limiter.peek(&policy(2), tenant).await.unwrap().remaining(), 2);
        }
    })
    .await;
}

/// Polls once.
async fn futures_pending<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

#[tokio::test]
async fn dropped_body_releases_permit() {
    isolated(async {
        let channels: Vec<_> = (0..2).map(|_| oneshot::channel()).collect();
        let (_senders, receivers): (Vec<oneshot::Sender<()>>, Vec<_>) = channels.into_iter().unzip();
        let mut running: Vec<_> = receivers
            .into_iter()
            .map(|until| Box::pin(export("bob", until)))
            .collect();
        for running in &mut running {
            assert!(futures_pending(running.as_mut()).await);
        }
        let (_done, until) = oneshot::channel();
        assert!(export("bob", until).await.unwrap_err().is_limited());
        drop(running.pop());
        let (done, until) = oneshot::channel();
        done.send(()).unwrap();
        assert_eq!(export("bob", until).await.unwrap(), "bob");
    })
    .await;
}

fn busy(rejection: Rejection) -> &'static str {
    assert!(matches!(
        rejection,
        Rejection::TimedOut { .. } | Rejection::Limited(_)
    ));
    "busy"
}

fn too_many() -> &'static str {
    "too many"
}

fn tomorrow() -> &'static str {
    "tomorrow"
}

#[window_limiter(name = "held.daily", limit = 2, window = "1d", fallback = tomorrow)]
#[concurrency_limiter(name = "held.all", max = 3, fallback = too_many)]
#[concurrency_limiter(name = "held.user", max = 1, key = "{user}", fallback = busy, pass_rejection)]
async fn report(user: &str, until: oneshot::Receiver<()>) -> &'static str {
    let _ = (user, until.await);
    "done"
}

#[tokio::test]
async fn permit_is_released_if_other_limit_denies() {
    let (limiter, _) = fresh();
    let held = |name: &str, max: u32| Policy::concurrency(name).max(max).build().unwrap();
    let (all, user) = (held("held.all", 3), held("held.user", 1));
    with_limiter(limiter.clone(), async {
        let (done, until) = oneshot::channel();
        let mut first = Box::pin(report("ann", until));
        assert!(futures_pending(first.as_mut()).await);
        assert_eq!(limiter.peek(&all, "").await.unwrap().remaining(), 2);
        let (_done, until) = oneshot::channel();
        assert_eq!(report("ann", until).await, "busy");
        assert_eq!(limiter.peek(&all, "").await.unwrap().remaining(), 2);
        let (_done, until) = oneshot::channel();
        let mut second = Box::pin(report("bob", until));
        assert!(futures_pending(second.as_mut()).await);
        let (_done, until) = oneshot::channel();
        assert_eq!(report("cleo", until).await, "tomorrow");
        assert_eq!(limiter.peek(&all, "").await.unwrap().remaining(), 1);
        assert_eq!(limiter.peek(&user, "cleo").await.unwrap().remaining(), 1);
        let (_permit, full) = (
            limiter.acquire_concurrency(&all, "").await.unwrap(),
            oneshot::channel(),
        );
        assert_eq!(report("dan", full.1).await, "too many");
        done.send(()).unwrap();
        assert_eq!(first.await, "done");
        drop(second);
        assert_eq!(limiter.peek(&all, "").await.unwrap().remaining(), 2);
    })
    .await;
}

#[concurrency_limiter(name = "held.wait", max = 1, wait = "1m", when = limited, need = 1)]
#[token_limiter(name = "held.rate", capacity = 10, rate = 1)]
async fn in_turn(limited: bool, for_so_long: Duration) -> Result<(), Rejection> {
    let _ = limited;
    tokio::time::sleep(for_so_long).await;
    Ok(())
}

#[tokio::test]
async fn concurrent_calls_wait_for_permits() {
    isolated(async {
        let moment = Duration::from_millis(5);
        let (one, two, three) = tokio::join!(
            in_turn(true, moment),
            in_turn(true, moment),
            in_turn(true, moment)
        );
        assert!(one.is_ok() && two.is_ok() && three.is_ok());
        let (one, two) = tokio::join!(in_turn(true, moment), in_turn(false, moment));
        assert!(one.is_ok() && two.is_ok());
    })
    .await;
    let (limiter, _) = fresh();
    limiter.shutdown(Duration::ZERO).await;
    with_limiter(limiter, async {
        let Err(Rejection::Unavailable { error, .. }) = in_turn(true, Duration::ZERO).await else {
            panic!("the limiter was shut down")
        };
        assert_eq!(error.kind(), StoreErrorKind::ShutDown);
    })
    .await;
}

struct Jobs {
    max_jobs: u32,
}

impl Jobs {
    #[concurrency_limiter(name = "held.jobs", max = self.max_jobs, key = "{self.max_jobs}", need = cost)]
    async fn run(&self, cost: u32) -> Result<u32, Rejection> {
        Ok(cost)
    }
}

#[tokio::test]
async fn maximum_can_be_computed() {
    isolated(async {
        assert_eq!(Jobs { max_jobs: 4 }.run(4).await.unwrap(), 4);
        assert!(matches!(
            Jobs { max_jobs: 4 }.run(5).await,
            Err(Rejection::NeverFits { .. })
        ));
        assert!(matches!(
            Jobs { max_jobs: 0 }.run(1).await,
            Err(Rejection::Config(_))
        ));
    })
    .await;
}
