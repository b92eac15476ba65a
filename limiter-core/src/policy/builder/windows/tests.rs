use crate::policy::builder::windows::*;

#[test]
fn error_names_value_and_expectation() {
    let counter = || Policy::counter_window("p");
    let fixed = || Policy::fixed_window("p");
    let cases = [
        (counter().window("1s").build(), "limit is missing"),
        (counter().limit(1).build(), "window is missing"),
        (counter().limit(0).window("1s").build(), "limit is `0`"),
        (counter().limit(0.5).window("1s").build(), "limit is `0.5`"),
        (
            counter().limit(5_000_000_000_000_u64).window("1s").build(),
            "from 1 to 4398046511104",
        ),
        (counter().limit(1).window("51d").build(), "at most 50 days"),
        (
            counter().limit(1).window("month").build(),
            "window is `month`, expected a length",
        ),
        (
            counter().limit(1).window("1s").lease("1s").build(),
            "expected none for a window",
        ),
        (fixed().window("1s").build(), "limit is missing"),
        (fixed().limit(1).build(), "window is missing"),
        (
            fixed().limit(u64::MAX).window("1s").build(),
            "from 1 to 4503599627370496",
        ),
        (fixed().limit(1).window("0s").build(), "window is `0ns`"),
        (
            fixed().limit(1).window("month").build(),
            "an offset from UTC besides (`aligned`",
        ),
        (
            fixed().limit(1).window("1d").aligned("CET").build(),
            "offset from UTC is `CET`",
        ),
        (
            fixed().limit(1).window("1d").lease("1s").build(),
            "expected none for a window",
        ),
    ];
    for (policy, message) in cases {
        let error = policy.expect_err(message).to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn display_describes_policy() {
    let fixed = |window: &str| Policy::fixed_window("p").limit(5).window(window);
    let cases = [
        (
            Policy::counter_window("p").limit(5).window("week").build(),
            "p (counter window: 5 in about 7d)",
        ),
        (
            fixed("1h30m").build(),
            "p (fixed window: 5 in each 1h30m from its first use)",
        ),
        (
            fixed("1d").aligned(UtcOffset::UTC).build(),
            "p (fixed window: 5 in each 1d of UTC)",
        ),
        (
            fixed("30d").aligned("utc").build(),
            "p (fixed window: 5 in each 30d of UTC)",
        ),
        (
            fixed("month").aligned("-05:30").build(),
            "p (fixed window: 5 in each month of -05:30)",
        ),
    ];
    for (policy, text) in cases {
        assert_eq!(policy.unwrap().to_string(), text);
    }
    let month = fixed("month").aligned("utc").build().unwrap();
    assert_eq!(month.window(), Duration::from_secs(31 * 86_400));
    assert!(month.is_calendar_month());
    let days = fixed("31d").aligned("utc").build().unwrap();
    assert!(!days.is_calendar_month());
}
