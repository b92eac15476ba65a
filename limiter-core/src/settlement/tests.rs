//! Settlements of calendar periods, whose clock differs from the monotonic time of the process.

use std::time::Duration;

use crate::policy::Inheritance;
use crate::policy::Policy;
use crate::registry::PolicyRegistry;
use crate::request::LimitRequest;
use crate::settlement::*;
use crate::support::clock::ManualClock;
use crate::units::Timestamp;

const MINUTE: i64 = 60_000_000;

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

fn day(limit: u32) -> Policy {
    let day = Policy::fixed_window("day").limit(limit).window("1d");
    day.aligned("utc").build().expect("valid")
}

fn hourly() -> Policy {
    let bucket = Policy::token_bucket("hourly").capacity(60).rate("1/h");
    bucket.build().expect("valid")
}

/// 23:00 in monotonic time.
fn evening() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_micros(
        20_000 * 86_400_000_000 + 23 * 3_600_000_000,
    ))
}

#[tokio::test]
async fn reservation_is_refunded_until_calendar_day_ends() {
    let (day, bucket) = (day(9), hourly());
    // Offset of the calendar, minutes until the settlement, and offset of the calendar at the
    // settlement.
    for (ahead, later, then_ahead) in [
        (0, 59, 0),
        (0, 60, 0),
        (30, 29, 30),
        (30, 30, 30),
        (-30, 89, -30),
        (-30, 90, -30),
        // The machine was suspended.
        (0, 1, 120),
        (-30, 1, 30),
        // The clock was set back.
        (30, 40, 0),
    ] {
        for alone in [true, false] {
            let case = (ahead, later, then_ahead, alone);
            let clock = evening();
            let limits = Limiter::in_process().clock(&clock).build();
            clock.set_calendar_ahead(ahead * MINUTE);
            let requests = [
                LimitRequest::new(&day, "ann").cost(2),
                LimitRequest::new(&bucket, "ann").cost(2),
            ];
            let requests = requests.into_iter().take(if alone { 1 } else { 2 });
            let reservation = limits.reserve_all(requests).await.expect("granted");
            clock.advance(minutes(later));
            clock.set_calendar_ahead(then_ahead * MINUTE);
            assert!(
                limits
                    .check(&day, "ann")
                    .cost(3)
                    .await
                    .expect("decided")
                    .is_allowed()
            );
            reservation.cancel().await.expect("refunded");
            let used = 9 - limits.peek(&day, "ann").await.expect("peeked").remaining();
            assert_eq!(used, 3, "{case:?}: only the cost of the other call remains");
        }
    }
}

#[tokio::test]
async fn proportionally_changed_day_ends_by_calendar() {
    for ahead in [0, 14 * 60, -14 * 60] {
        let clock = evening();
        clock.set_calendar_ahead(ahead * MINUTE);
        let registry = PolicyRegistry::new().with(day(10));
        let limits = Limiter::in_process().clock(&clock).registry(&registry).build();
        let named = limits.named("day");
        let reservation = named.reserve("ann").cost(2).await.expect("granted");
        assert!(named.check("ann").cost(3).await.expect("decided").is_allowed());

        clock.advance(minutes(1));
        registry
            .change_at(day(20), Inheritance::Proportional, clock.now())
            .expect("changed");
        let left = async || named.peek("ann").await.expect("peeked").remaining();
        assert_eq!(left().await, 10, "{ahead}");
        reservation.cancel().await.expect("refunded");
        assert_eq!(left().await, 14, "{ahead}");

        let since_midnight = u64::try_from(23 * 60 + 1 + ahead).expect("after the epoch's") % 1_440;
        clock.advance(minutes(1_440 - since_midnight - 1));
        assert_eq!(left().await, 14, "{ahead}: a minute is left of the day");
        clock.advance(minutes(1));
        assert_eq!(left().await, 20, "{ahead}");
    }
}
