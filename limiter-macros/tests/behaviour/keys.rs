//! The key of a call.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use limiter_core::{Key, Limiter, Policy, Rejection, token_limiter, window_limiter};

use crate::{fresh, is_send, isolated};

struct Claims {
    sub: String,
    tenant: Tenant,
}

struct Tenant(u32);

struct State<T>(T);

#[derive(Clone)]
struct App {
    region: &'static str,
}

fn claims(sub: &str, tenant: u32) -> Claims {
    Claims {
        sub: sub.to_owned(),
        tenant: Tenant(tenant),
    }
}

#[window_limiter(limit = 1, window = "1m", key = "{claims.tenant.0}:{claims.sub}")]
async fn by_field(claims: &Claims) -> Result<(), Rejection> {
    let _ = claims;
    Ok(())
}

#[window_limiter(limit = 1, window = "1m", key = "{a}:{b}")]
async fn by_two(a: &str, b: &str) -> Result<(), Rejection> {
    let _ = (a, b);
    Ok(())
}

#[window_limiter(limit = 1, window = "1m", key = "user:{claims.sub}:{app.region}")]
async fn by_destructured(State(app): State<App>, claims: Claims) -> Result<(App, String), Rejection> {
    Ok((app, claims.sub))
}

#[window_limiter(limit = 1, window = "1m", key = "{{{r#type}}}")]
async fn by_raw_name(r#type: u8) -> Result<(), Rejection> {
    let _ = r#type;
    Ok(())
}

#[window_limiter(limit = 1, window = "1m", key = Key::from("tenant:").part(claims.tenant.0))]
async fn by_key(claims: &Claims) -> Result<(), Rejection> {
    let _ = claims;
    Ok(())
}

#[window_limiter(limit = 1, window = "1m", key = name)]
async fn by_value(name: String) -> Result<String, Rejection> {
    Ok(name)
}

#[window_limiter(limit = 1, window = "1m", key = "everybody")]
async fn by_text() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn keys_are_fields_names_and_expressions() {
    isolated(async {
        assert!(by_field(&claims("ann", 1)).await.is_ok());
        assert!(by_field(&claims("ann", 1)).await.is_err());
        assert!(by_field(&claims("ann", 2)).await.is_ok());
        assert!(by_field(&claims("bob", 1)).await.is_ok());

        let app = App { region: "eu" };
        let (app, sub) = by_destructured(State(app), claims("ann", 1)).await.unwrap();
        assert_eq!(sub, "ann");
        assert!(
            by_destructured(State(app.clone()), claims("ann", 1))
                .await
                .is_err()
        );
        assert!(
            by_destructured(State(App { region: "us" }), claims("ann", 1))
                .await
                .is_ok()
        );

        assert!(
            by_raw_name(1).await.is_ok() && by_raw_name(2).await.is_ok() && by_raw_name(1).await.is_err()
        );
        assert!(by_key(&claims("ann", 1)).await.is_ok() && by_key(&claims("bob", 1)).await.is_err());
        assert_eq!(by_value("ann".to_owned()).await.unwrap(), "ann");
        assert!(by_value("ann".to_owned()).await.is_err());
        assert!(by_text().await.is_ok() && by_text().await.is_err());
    })
    .await;
}

#[tokio::test]
async fn one_value_cannot_imitate_two_parts() {
    isolated(async {
        assert!(by_two("x:y", "z").await.is_ok());
        assert!(by_two("x", "y:z").await.is_ok());
        assert!(by_two("x:y", "z").await.is_err());
    })
    .await;
}

#[window_limiter(group = "mail", limit = 1, window = "1m", key = "{to}")]
async fn send_mail(to: &str) -> Result<(), Rejection> {
    let _ = to;
    Ok(())
}

#[window_limiter(group = "mail", limit = 1, window = "1m", key = "{to}")]
async fn send_newsletter(to: &str) -> Result<(), Rejection> {
    let _ = to;
    Ok(())
}

#[window_limiter(
    name = "grouped",
    group = "tenant:{tenant}",
    limit = 1,
    window = "1m",
    key = "{to}"
)]
async fn grouped(tenant: u32, to: &str) -> Result<(), Rejection> {
    let _ = (tenant, to);
    Ok(())
}

#[tokio::test]
async fn group_shares_budget_and_tags_keys() {
    isolated(async {
        assert!(send_mail("ann").await.is_ok());
        assert!(send_newsletter("ann").await.is_err());
        assert!(send_newsletter("bob").await.is_ok());
        assert!(grouped(1, "ann").await.is_ok());
        assert!(grouped(2, "ann").await.is_ok());
        assert!(grouped(2, "ann").await.is_err());
    })
    .await;
}

static EVALUATED: AtomicUsize = AtomicUsize::new(0);

fn count(value: u32) -> u32 {
    EVALUATED.fetch_add(1, Ordering::SeqCst);
    value
}

#[token_limiter(name = "counted", capacity = count(5), rate = 1, key = count(1), need = count(1), group = count(1), when = count(1) == 1)]
async fn counted() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn arguments_are_evaluated_once() {
    isolated(async {
        assert!(counted().await.is_ok());
        assert_eq!(EVALUATED.load(Ordering::SeqCst), 5);
    })
    .await;
}

struct Tier {
    name: String,
    limits: Limiter,
    capacity: u32,
    rate: u32,
    period: Duration,
    cost: u32,
}

/// Each expression takes the lock, so none of them may hold it while the next one is evaluated.
#[token_limiter(
    name = "locked.burst",
    capacity = tier.try_lock().unwrap().capacity,
    rate = tier.try_lock().unwrap().rate,
    per = tier.try_lock().unwrap().period,
    need = tier.try_lock().unwrap().cost,
    key = tier.try_lock().unwrap().name,
    group = tier.try_lock().unwrap().name,
    when = tier.try_lock().unwrap().cost > 0,
    wait = tier.try_lock().unwrap().period,
    limiter = tier.try_lock().unwrap().limits
)]
#[window_limiter(
    name = "locked.daily",
    key = Key::from(&tier.try_lock().unwrap().name).in_group("other"),
    group = Key::from(&tier.try_lock().unwrap().name),
    limit = tier.try_lock().unwrap().capacity,
    window = tier.try_lock().unwrap().period,
    need = tier.try_lock().unwrap().cost
)]
async fn locked(tier: &Mutex<Tier>) -> Result<(), Rejection> {
    let _ = tier;
    Ok(())
}

#[tokio::test]
async fn expressions_release_their_locks_before_next_one() {
    isolated(async {
        let (limits, _clock) = fresh();
        let tier = Mutex::new(Tier {
            name: "ann".to_owned(),
            limits: limits.clone(),
            capacity: 4,
            rate: 1,
            period: Duration::from_secs(60),
            cost: 2,
        });
        assert!(is_send(locked(&tier)).await.is_ok());
        let burst = Policy::token_bucket("locked.burst")
            .capacity(4)
            .rate("1/m")
            .build();
        let key = Key::from("ann").in_group("ann");
        let peek = limits.peek(burst.as_ref().unwrap(), key).await.unwrap();
        assert_eq!(peek.remaining(), 2);
        tier.lock().unwrap().cost = 5;
        assert!(matches!(locked(&tier).await, Err(Rejection::NeverFits { .. })));
    })
    .await;
}
