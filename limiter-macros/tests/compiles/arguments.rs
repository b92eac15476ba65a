//! Every argument of every attribute, in one of the ways to write it.

use std::time::Duration;

use limiter_core::{Limiter, Rejection, funnel_limiter, token_limiter, window_limiter};

struct User {
    id: u64,
    guest: bool,
}

async fn on_limited(user: &User, limits: &Limiter, rejection: Rejection) -> Result<(), Rejection> {
    let _ = (user, limits);
    Err(rejection)
}

#[token_limiter(
    capacity = 20,
    rate = 10,
    per = "1m",
    name = "token",
    group = "users",
    key = "user:{user.id}",
    need = 2,
    wait = "500ms",
    when = user.guest,
    limiter = limits,
    fallback = on_limited,
    pass_args,
    pass_rejection,
    deadline = "20ms",
    on_store_failure = fail_open,
    lease = "1s",
    count_if = Result::is_ok,
    crate = ::limiter_core,
)]
async fn token(user: &User, limits: &Limiter) -> Result<(), Rejection> {
    let _ = (user, limits);
    Ok(())
}

#[funnel_limiter(
    capacity = 2.5,
    rate = "100/min",
    name = "funnel",
    group = "tenant:{user.id}",
    key = user.id,
    need = 0.5,
    wait = Duration::from_millis(500),
    when = true,
    limiter = *limits,
    fallback = on_limited,
    pass_args,
    pass_rejection,
    deadline = Duration::from_millis(20),
    on_store_failure = fail_closed,
    lease = Duration::from_secs(1),
    crate = limiter_core
)]
async fn funnel(user: &User, limits: &Limiter) -> Result<(), Rejection> {
    let _ = (user, limits);
    Ok(())
}

#[window_limiter(
    limit = 5,
    window = "1h30m",
    name = "window",
    group = user.id,
    key = format!("user:{}", user.id),
    need = user.id,
    wait = "1s",
    when = !user.guest,
    limiter = limits.clone(),
    fallback = on_limited,
    pass_args,
    pass_rejection,
    deadline = "20ms",
    on_store_failure = error,
    crate = ::limiter_core
)]
async fn window(user: &User, limits: &Limiter) -> Result<(), Rejection> {
    let _ = (user, limits);
    Ok(())
}

#[window_limiter(policy = "window", key = "{user.id}", need = 2, count_if = |done| done.is_err())]
async fn named(user: &User) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

#[test]
fn all_forms_of_arguments_compile() {
    let (user, limits) = (User { id: 1, guest: true }, Limiter::in_process().build());
    drop((
        token(&user, &limits),
        funnel(&user, &limits),
        window(&user, &limits),
        named(&user),
    ));
}
