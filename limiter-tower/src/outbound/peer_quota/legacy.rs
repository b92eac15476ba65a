//! Parses `X-RateLimit-Remaining` and `X-RateLimit-Reset`, which have no specification: some
//! servers send a number of seconds as reset, others a time. Only unambiguous values are used.

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName};

use super::{Now, digits, only};

const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

const DAY: u64 = 86_400;
/// In the year 2001. Earlier values are no plausible time, later ones no plausible number of
/// seconds.
const FIRST_MOMENT: u64 = 1_000_000_000;
/// In the year 5138, or 1973 in milliseconds.
const LAST_MOMENT: u64 = 99_999_999_999;

pub(super) fn pause(headers: &HeaderMap, now: &Now<'_>) -> Option<Duration> {
    let remaining: u64 = digits(only(headers, &REMAINING)?)?;
    if remaining > 0 {
        return None;
    }
    let pause = match digits(only(headers, &RESET)?)? {
        seconds @ 0..=DAY => Duration::from_secs(seconds),
        seconds @ FIRST_MOMENT..=LAST_MOMENT => {
            now.until(UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?)?
        }
        millis if (FIRST_MOMENT * 1_000..=LAST_MOMENT * 1_000).contains(&millis) => {
            now.until(UNIX_EPOCH.checked_add(Duration::from_millis(millis))?)?
        }
        _ => return None,
    };
    (!pause.is_zero()).then_some(pause)
}
