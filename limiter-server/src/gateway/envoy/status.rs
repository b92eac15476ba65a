//! From the result of a limit to the status of a descriptor. Tests: below.

use std::time::Duration;

use limiter_core::{LimitOutcome, Origin, Policy};

use crate::gateway::charge::LimitResult;
use crate::gateway::envoy::messages::{Code, CurrentLimit, DescriptorStatus, Unit};

/// The largest first. A month has 30 days and a year 365, as in the reference implementation.
const SECONDS: [(Unit, u64); 7] = [
    (Unit::Year, 365 * 86_400),
    (Unit::Month, 30 * 86_400),
    (Unit::Week, 7 * 86_400),
    (Unit::Day, 86_400),
    (Unit::Hour, 3_600),
    (Unit::Minute, 60),
    (Unit::Second, 1),
];

/// Returns the status of a limit.
pub(super) fn status(policy: Option<&Policy>, result: &LimitResult) -> DescriptorStatus {
    let code = match result.allowed {
        true => Code::Ok,
        false => Code::OverLimit,
    };
    let Some(outcome) = &result.outcome else {
        // A limit that is off, or a key on an allow list, is unlimited. Without a decision of a
        // store, the numbers are unknown.
        let is_unlimited = result.allowed && result.origin != Origin::FailedOpen;
        return DescriptorStatus {
            code: code.into(),
            limit_remaining: if result.allowed && is_unlimited {
                u32::MAX
            } else {
                0
            },
            current_limit: policy.filter(|_| !is_unlimited).map(current_limit),
            ..DescriptorStatus::default()
        };
    };
    let reset = match outcome.is_allowed() {
        true => outcome.reset_after(),
        false => outcome.retry_after(),
    };
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(current_limit(outcome.policy())),
        limit_remaining: u32::try_from(outcome.remaining().whole()).unwrap_or(u32::MAX),
        duration_until_reset: Some(whole_seconds(reset)),
        quota: None,
    }
}

/// Returns the status of a limit without permits.
pub(super) fn zero(code: Code) -> DescriptorStatus {
    DescriptorStatus {
        code: code.into(),
        ..DescriptorStatus::default()
    }
}

/// Returns the seconds until a retry of a denied request succeeds, if one can.
pub(super) fn retry_after(result: &LimitResult) -> Option<i64> {
    let outcome: &LimitOutcome = result.outcome.as_ref().filter(|_| result.can_retry)?;
    Some(whole_seconds(outcome.retry_after()).seconds.max(1))
}

/// Returns a duration in whole seconds, rounded up: Envoy ignores the rest when it computes
/// headers.
fn whole_seconds(duration: Duration) -> prost_types::Duration {
    let seconds = duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0));
    prost_types::Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: 0,
    }
}

/// Returns a policy as permits per period. The period of a token bucket is the time in which it
/// refills.
pub(super) fn current_limit(policy: &Policy) -> CurrentLimit {
    let seconds = u64::try_from(whole_seconds(policy.window()).seconds.max(1)).unwrap_or(u64::MAX);
    let unit = SECONDS.iter().find(|(_, length)| seconds.is_multiple_of(*length));
    let (unit, length) = match unit {
        _ if policy.is_calendar_month() => (Unit::Month, seconds),
        Some(unit) => *unit,
        None => (Unit::Second, 1),
    };
    CurrentLimit {
        requests_per_unit: u32::try_from(policy.quota().whole()).unwrap_or(u32::MAX),
        unit: unit.into(),
        name: policy.name().to_owned(),
        unit_multiplier: Some(u32::try_from(seconds / length).unwrap_or(u32::MAX)).filter(|of| *of > 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_is_expressed_in_its_largest_unit() {
        let limit = |window: &str| {
            let policy = Policy::sliding_window("p")
                .limit(5)
                .window(window)
                .build()
                .unwrap();
            let limit = current_limit(&policy);
            (limit.unit(), limit.unit_multiplier.unwrap_or(1))
        };
        assert_eq!(limit("1s"), (Unit::Second, 1));
        assert_eq!(limit("90s"), (Unit::Second, 90));
        assert_eq!(limit("10m"), (Unit::Minute, 10));
        assert_eq!(limit("1h"), (Unit::Hour, 1));
        assert_eq!(limit("2d"), (Unit::Day, 2));
        assert_eq!(limit("7d"), (Unit::Week, 1));
        assert_eq!(limit("30d"), (Unit::Month, 1));
        assert_eq!(limit("31d"), (Unit::Day, 31));
        assert_eq!(limit("60d"), (Unit::Month, 2));
        assert_eq!(limit("365d"), (Unit::Year, 1));
        let month = Policy::fixed_window("p").limit(5).window("month").aligned("utc");
        let month = current_limit(&month.build().unwrap());
        assert_eq!((month.unit(), month.unit_multiplier), (Unit::Month, None));
        assert_eq!(limit("1500ms"), (Unit::Second, 2));
    }

    #[test]
    fn durations_are_rounded_up_to_seconds() {
        for (millis, seconds) in [(0, 0), (1, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)).seconds, seconds);
        }
    }
}
