//! Logins: only failures are counted, and a client with too many failures is locked out for a
//! while.
//!
//! ```sh
//! cargo run -p examples --bin failed_logins                                   # decides in this process
//! REDIS_URL=redis://127.0.0.1/ cargo run -p examples --bin failed_logins      # on every replica
//! LIMITER_ENFORCEMENT=shadow cargo run -p examples --bin failed_logins        # reports, and locks no client out
//! ```
//!
//! A peek detects locked-out clients and charges nothing, so a correct password is never limited. A
//! failure is charged afterwards; a failure above the limit is a denial, and a number of denials is
//! a lockout.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::process::ExitCode;
use std::time::Duration;

use examples::Failure;
use limiter_core::penalty::Penalty;
use limiter_core::{Enforcement, Limiter, Policy, Rejection};

/// Three failures within five seconds, and a lockout of two seconds after two more: short, so that
/// the example ends.
fn failures() -> Result<Policy, Rejection> {
    let policy = Policy::sliding_window("login-failures")
        .limit(3)
        .window("5s")
        .penalty(Penalty::after(2, "1m").block_for("2s"))
        .deny_keys(["203.0.113.0/24"])
        .allow_keys(["127.0.0.1"])
        .build()?;
    Ok(policy)
}

enum Login {
    Welcome,
    WrongPassword,
    LockedOut(Option<Duration>),
}

async fn login(
    limits: &Limiter,
    failures: &Policy,
    address: &str,
    password: &str,
) -> Result<Login, Rejection> {
    let room = limits.peek(failures, address).await?;
    if room.is_blocked() && !room.is_allowed() {
        return Ok(Login::LockedOut(room.retry_after()));
    }
    if let Err(forbidden @ Rejection::Forbidden { .. }) = room.require() {
        return Err(forbidden);
    }
    if password == "hunter2" {
        return Ok(Login::Welcome);
    }
    // A failed login is the only call that charges the limit.
    let charged = limits.check(failures, address).await?;
    if charged.is_blocked() && !charged.is_allowed() {
        return Ok(Login::LockedOut(charged.retry_after()));
    }
    Ok(Login::WrongPassword)
}

#[tokio::main]
async fn main() -> ExitCode {
    examples::ended(run().await)
}

async fn run() -> Result<(), Failure> {
    let limits = examples::limiter(&examples::store(), "failed-logins").await?;
    let failures = failures()?;
    let enforced = limits.enforcement() == Enforcement::Enforce;
    println!("limits are in the mode `{}`\n", limits.enforcement());
    let attacker = "198.51.100.7";
    limits.reset(&failures, attacker).await?;

    let attempt = async |address: &str, password: &str| -> Result<bool, Rejection> {
        let outcome = login(&limits, &failures, address, password).await;
        let result = match &outcome {
            Ok(Login::Welcome) => "welcome".to_owned(),
            Ok(Login::WrongPassword) => "wrong password".to_owned(),
            Ok(Login::LockedOut(wait)) => format!("locked out for {:.1?}", wait.unwrap_or_default()),
            Err(Rejection::Forbidden { .. }) => "forbidden".to_owned(),
            Err(_) => return outcome.map(|_| false),
        };
        println!("{address:<14} {password:<9} {result}");
        Ok(matches!(outcome, Ok(Login::Welcome)))
    };
    for password in ["letmein", "password", "qwerty", "123456", "dragon"] {
        attempt(attacker, password).await?;
    }
    // The right password comes too late, and others are not locked out.
    let too_late = attempt(attacker, "hunter2").await?;
    assert!(!(enforced && too_late), "a locked-out client stays locked out");
    assert!(attempt("192.0.2.1", "hunter2").await?, "others log in");
    for _ in 0..9 {
        // On the list, as a health check may be.
        let _ = login(&limits, &failures, "127.0.0.1", "probe").await?;
    }
    assert!(
        attempt("127.0.0.1", "hunter2").await?,
        "on the allow list, despite failures"
    );
    let forbidden = attempt("203.0.113.9", "hunter2").await?;
    assert!(!(enforced && forbidden), "on the deny list, despite the password");

    if let Some(until) = limits.blocked_until(&failures, attacker).await? {
        println!("\n{attacker} is blocked until {} µs\n", until.as_micros());
        tokio::time::sleep(Duration::from_millis(2_100)).await;
    }
    assert!(attempt(attacker, "hunter2").await?, "a lockout ends");
    Ok(())
}
