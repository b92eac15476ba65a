//! A service with a limit, and its tests, which advance an injected clock: a simulated day takes
//! milliseconds, and the tests do not depend on the load of the machine.
//!
//! ```sh
//! cargo test -p examples --bin tested_with_a_clock    # as tests
//! cargo run -p examples --bin tested_with_a_clock     # one after the other, with output
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use examples::Failure;
use limiter_core::{ConfigError, Limiter, ManualClock, Policy, Rejection};

const HOUR: Duration = Duration::from_secs(3_600);

/// The code under test: three letters per hour to one address, and ten per day. The limiter is
/// injected.
struct Letters {
    limits: Limiter,
    hourly: Policy,
    daily: Policy,
}

impl Letters {
    fn new(limits: Limiter) -> Result<Self, ConfigError> {
        Ok(Self {
            limits,
            hourly: Policy::sliding_window("hourly").limit(3).window("1h").build()?,
            daily: Policy::sliding_window("daily").limit(10).window("1d").build()?,
        })
    }

    async fn send(&self, to: &str) -> Result<(), Rejection> {
        let both = [(&self.hourly, to), (&self.daily, to)];
        self.limits.check_all(both).await?.require()?;
        Ok(())
    }
}

/// Returns the service in process, and the clock that drives it.
fn letters() -> Result<(Letters, ManualClock), ConfigError> {
    let clock = ManualClock::new();
    let limits = Limiter::in_process().clock(&clock).build();
    Ok((Letters::new(limits)?, clock))
}

/// The time at which the next letter may be sent, unless it may be now.
fn wait(sent: Result<(), Rejection>) -> Option<Duration> {
    sent.err()?.retry_after()
}

async fn fourth_letter_waits_until_first_is_an_hour_old() -> Result<(), Failure> {
    let (letters, clock) = letters()?;
    for _ in 0..3 {
        letters.send("ann").await?;
        clock.advance(Duration::from_secs(60));
    }
    assert_eq!(
        wait(letters.send("ann").await),
        Some(HOUR - Duration::from_secs(180))
    );
    letters.send("bob").await?;
    clock.advance(HOUR - Duration::from_secs(180));
    letters.send("ann").await?;
    Ok(())
}

async fn letter_one_microsecond_early_is_denied() -> Result<(), Failure> {
    let (letters, clock) = letters()?;
    for _ in 0..3 {
        letters.send("ann").await?;
    }
    clock.advance(HOUR - Duration::from_micros(1));
    assert_eq!(wait(letters.send("ann").await), Some(Duration::from_micros(1)));
    clock.advance(Duration::from_micros(1));
    letters.send("ann").await?;
    Ok(())
}

async fn eleventh_letter_of_a_day_waits_for_next_day() -> Result<(), Failure> {
    let (letters, clock) = letters()?;
    for _ in 0..10 {
        letters.send("ann").await?;
        clock.advance(HOUR);
    }
    assert_eq!(wait(letters.send("ann").await), Some(14 * HOUR));
    clock.advance(14 * HOUR);
    letters.send("ann").await?;
    Ok(())
}

async fn waiter_is_woken_by_clock() -> Result<(), Failure> {
    let (letters, clock) = letters()?;
    for _ in 0..3 {
        letters.send("ann").await?;
    }
    let waits = letters.limits.acquire(&letters.hourly, "ann").timeout(2 * HOUR);
    let (permit, ()) = tokio::join!(waits, async { clock.advance(HOUR) });
    permit?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    examples::ended(run().await)
}

async fn run() -> Result<(), Failure> {
    let started = Instant::now();
    fourth_letter_waits_until_first_is_an_hour_old().await?;
    println!("a fourth letter waits until the first is an hour old");
    letter_one_microsecond_early_is_denied().await?;
    println!("one microsecond early is too early");
    eleventh_letter_of_a_day_waits_for_next_day().await?;
    println!("the eleventh letter of a day waits for the next");
    waiter_is_woken_by_clock().await?;
    println!("a waiter is woken by the clock");
    println!("\nMore than a day, in {:.1?}.", started.elapsed());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Failure;

    #[tokio::test]
    async fn fourth_letter_waits_until_first_is_an_hour_old() -> Result<(), Failure> {
        super::fourth_letter_waits_until_first_is_an_hour_old().await
    }

    #[tokio::test]
    async fn letter_one_microsecond_early_is_denied() -> Result<(), Failure> {
        super::letter_one_microsecond_early_is_denied().await
    }

    #[tokio::test]
    async fn eleventh_letter_of_a_day_waits_for_next_day() -> Result<(), Failure> {
        super::eleventh_letter_of_a_day_waits_for_next_day().await
    }

    #[tokio::test]
    async fn waiter_is_woken_by_clock() -> Result<(), Failure> {
        super::waiter_is_woken_by_clock().await
    }
}
