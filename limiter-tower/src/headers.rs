//! Writes rate limit headers of HTTP responses. Pure: the input is a decision, the output is header
//! values.
//!
//! Clients need to know how many requests they may still send, and several header drafts exist.
//! Each draft shows, for every limit, the remaining permits and the time for which they have to
//! suffice ([`LimitOutcome::effective_window`]). [`RateLimitFields`] formats the values into one
//! buffer and then merges them with the headers of inner layers.
//!
//! Invariants: a client that follows the headers, does not share its key, and sends requests of one
//! permit is never denied. A client whose requests all have one cost is never denied either if it
//! reads every response: if no further request of this cost fits, the remaining permits are shown
//! as 0, until one fits ([`LimitOutcome::available_after`]). Tests: `headers/tests/`,
//! `tests/http/answers.rs`, `tests/http/nested.rs`.

mod draft10;
mod draft7;
mod header_buffer;
mod request_cost;
mod unsettled;

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{DATE, Entry, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use limiter_core::__private::{is_in_shadow, whole_seconds};
use limiter_core::{Decision, Enforcement, LimitOutcome};

use header_buffer::HeaderBuffer;
pub(crate) use request_cost::Costs;
pub(crate) use unsettled::Unsettled;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The draft of the rate limit headers in HTTP responses, both of allowed and of denied requests
/// ([`ResponseConfig::headers`](crate::ResponseConfig::headers)).
///
/// The headers for a bucket of 100 permits that fills in a minute and has 70 permits left:
///
/// | | |
/// |---|---|
/// | [`Draft11`](Self::Draft11) | `RateLimit-Policy: "burst";q=100;w=60` |
/// | | `RateLimit: "burst";r=70;t=42` |
/// | [`Draft10`](Self::Draft10) | `RateLimit-Policy: "burst";q=100;w=60` |
/// | | `RateLimit: "burst";r=70;t=1` |
/// | [`Draft7`](Self::Draft7) | `RateLimit-Policy: 100;w=60` |
/// | | `RateLimit: limit=100, remaining=70, reset=42` |
/// | [`Legacy`](Self::Legacy) | `X-RateLimit-Limit: 100` |
/// | | `X-RateLimit-Remaining: 70` |
/// | | `X-RateLimit-Reset: 42` |
///
/// Remaining permits are whole numbers, rounded down. They are 0 if the limit denies the request,
/// and if fewer permits are left than the request has cost; the window then ends when another
/// request of this cost fits. Times are whole seconds, rounded up. Quotas are rounded down. Numbers
/// are limited to 15 digits, as in structured fields.
///
/// For a limit whose cost is [settled](crate::RateLimitLayer::settle), the headers show the
/// remaining permits after the settlement. If the response's head is sent before the settlement,
/// they show only the policy of this limit, and nothing in [`Legacy`](Self::Legacy).
///
/// Limits in shadow mode are omitted. The source of the decision is shown only in
/// [a separate header](crate::ResponseConfig::with_origin_header).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RateLimitHeaders {
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11 (structured
    /// fields, RFC 9651). The default.
    ///
    /// Each limit of a decision is an item. `q` is the quota. `w` is the window's length, or the
    /// time in which a bucket fills; it is omitted below one second. `r` is the number of remaining
    /// permits, and `t` is the effective window, in which the client may use at most `r`. A
    /// concurrency limit has neither `w` nor `t`, and has `qu="concurrent-requests"`.
    ///
    /// The policy's name is printable ASCII. Other characters and the percent sign are
    /// percent-encoded.
    #[default]
    Draft11,
    /// The two headers of draft 10: `t` is the time until more than `r` permits are available.
    Draft10,
    /// The headers of draft 7, which have the same names. `RateLimit` shows only the limit with the
    /// fewest remaining permits, and `reset` has the meaning of `t` in draft 11. `RateLimit-Policy`
    /// must not contain two policies with the same quota, so the first of them represents both. A
    /// window below one second is shown as one second. Concurrency limits are omitted.
    Draft7,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` of the limit with the
    /// fewest remaining permits. The reset is a number of seconds, not a timestamp, and has the
    /// meaning of `t` in draft 11.
    Legacy,
    /// No rate limit headers. `Retry-After` is still sent.
    None,
}

impl RateLimitHeaders {
    /// Adds the headers of a decision to a response, for services that decide without the layer.
    ///
    /// Lists that are present already become longer. `Retry-After` is not added.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::RateLimitHeaders;
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let policy = Policy::sliding_window("send").limit(5).window("1m").build()?;
    /// let decision = limits.check(&policy, "ann").await?;
    /// let mut headers = http::HeaderMap::new();
    /// RateLimitHeaders::Draft11.write(&decision, &mut headers);
    /// assert_eq!(headers["ratelimit-policy"], r#""send";q=5;w=60"#);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn write(self, decision: &Decision, headers: &mut HeaderMap) {
        if let Some(fields) = RateLimitFields::from_decision(decision, self, &Costs::ONE) {
            fields.write(headers);
        }
    }
}

/// The header values of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RateLimitFields {
    dialect: RateLimitHeaders,
    /// The concatenated values.
    values: Bytes,
    /// End offsets of the first and of the second value.
    ends: [usize; 2],
    /// Seconds until another request of this cost fits; 0 if one fits now.
    full_for: u64,
}

/// The result of writing a decision into a buffer.
struct MergedFields {
    ends: [usize; 2],
    /// The longest time for which one of the limits has no remaining permits.
    full_for: Duration,
}

impl RateLimitFields {
    /// Formats the headers of a decision. `None` if there are none.
    pub(crate) fn from_decision(
        decision: &Decision,
        dialect: RateLimitHeaders,
        costs: &Costs,
    ) -> Option<Self> {
        Self::except(&Unsettled::default(), decision, dialect, costs)
    }

    /// Formats the headers without the remaining permits of unsettled limits.
    pub(crate) fn except(
        open: &Unsettled,
        decision: &Decision,
        dialect: RateLimitHeaders,
        costs: &Costs,
    ) -> Option<Self> {
        let mut text = HeaderBuffer::default();
        let written = match dialect {
            RateLimitHeaders::Draft11 | RateLimitHeaders::Draft10 => {
                draft10::write(decision, open, dialect, costs, &mut text)
            }
            RateLimitHeaders::Draft7 => draft7::write_draft7(decision, open, costs, &mut text),
            RateLimitHeaders::Legacy => draft7::write_legacy(decision, open, costs, &mut text),
            RateLimitHeaders::None => None,
        };
        written.map(|MergedFields { ends, full_for }| Self {
            dialect,
            values: text.into_bytes(),
            ends,
            full_for: if full_for.is_zero() {
                0
            } else {
                whole_seconds(full_for)
            },
        })
    }

    /// Adds the headers to a response and merges them with existing headers.
    ///
    /// List headers of an inner layer are extended. Single-value headers keep the limit with fewer
    /// remaining permits and, for equal numbers, the limit with the longer wait. A header in
    /// another form, set by a handler, is not changed.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        match self.dialect {
            RateLimitHeaders::Draft11 | RateLimitHeaders::Draft10 => {
                for name in [RATELIMIT, RATELIMIT_POLICY] {
                    let Some(value) = self.value(&name) else { continue };
                    match headers.try_entry(name) {
                        Ok(Entry::Vacant(place)) => drop(place.try_insert(value)),
                        Ok(Entry::Occupied(mut others)) if draft10::is_list(others.get()) => {
                            others.append(value)
                        }
                        // A header map that is full is not changed.
                        _ => {}
                    }
                }
            }
            RateLimitHeaders::Draft7 => {
                self.replace(headers, [&RATELIMIT, &RATELIMIT], &[RATELIMIT_POLICY, RATELIMIT]);
            }
            RateLimitHeaders::Legacy => self.replace(
                headers,
                [&X_RATELIMIT_REMAINING, &X_RATELIMIT_RESET],
                &[X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET],
            ),
            RateLimitHeaders::None => {}
        }
        if self.full_for > 0 {
            self.extend_retry_after(headers);
        }
    }

    /// Extends a `Retry-After` that ends before this limit has permits. The component that set it
    /// did not know this limit.
    #[cold]
    fn extend_retry_after(&self, headers: &mut HeaderMap) {
        let full_for = Duration::from_secs(self.full_for);
        if stated_retry_after(headers).is_some_and(|stated| stated < full_for) {
            // A header map that is full accepts another value of an existing header.
            drop(headers.try_insert(RETRY_AFTER, self.full_for.into()));
        }
    }

    /// Replaces the headers of another limit if this limit is known to be more restrictive. `shown`
    /// names the headers with the remaining permits and with the reset.
    fn replace(&self, headers: &mut HeaderMap, shown: [&HeaderName; 2], names: &[HeaderName]) {
        let [remaining, reset] = shown;
        let keeps = headers.get(remaining).is_some_and(|existing| {
            let (own, until) = (self.value(remaining), self.value(reset));
            let own = own.and_then(|own| draft7::remaining_and_reset(&own, until.as_ref()));
            let others = draft7::remaining_and_reset(existing, headers.get(reset));
            others.is_none() || own.is_none() || others <= own
        });
        if keeps {
            return;
        }
        for name in names {
            // Another service may state its policies alone, as a list.
            let is_other_form = headers.get(name).is_some_and(draft10::is_list);
            if let Some(value) = self.value(name).filter(|_| !is_other_form) {
                drop(headers.try_insert(name, value));
            }
        }
    }

    /// Returns the value of a header.
    fn value(&self, name: &HeaderName) -> Option<HeaderValue> {
        let [first, second] = self.ends;
        let range = if *name == RATELIMIT_POLICY || *name == X_RATELIMIT_LIMIT {
            0..first
        } else if *name == X_RATELIMIT_RESET {
            second..self.values.len()
        } else {
            first..second
        };
        if range.is_empty() {
            return None;
        }
        // The buffer contains printable ASCII only, and the offsets are within it.
        HeaderValue::from_maybe_shared(self.values.slice(range)).ok()
    }
}

/// Returns the time until a `Retry-After`: seconds, or a date, relative to the `Date` of the
/// response if it has one (RFC 9110, 10.2.3).
fn stated_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok();
    let date = |text| httpdate::parse_http_date(text).ok();
    let stated = text(RETRY_AFTER)?;
    if let Ok(seconds) = stated.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let (end, now) = (date(stated)?, text(DATE).and_then(date));
    let until = end.duration_since(now.unwrap_or_else(SystemTime::now));
    Some(until.unwrap_or_default())
}

/// Returns the limits to show: enforced limits, except denials that shadow mode ignored.
fn fields_for(decision: &Decision) -> impl Iterator<Item = &LimitOutcome> {
    indexed_limits(decision).map(|(_, limit)| limit)
}

/// Returns the limits whose remaining permits are final.
fn known_of<'a>(decision: &'a Decision, open: &'a Unsettled) -> impl Iterator<Item = &'a LimitOutcome> {
    indexed_limits(decision).filter_map(|(index, limit)| (!open.has(index)).then_some(limit))
}

fn indexed_limits(decision: &Decision) -> impl Iterator<Item = (usize, &LimitOutcome)> {
    let in_shadow = decision.is_allowed() && !decision.is_degraded();
    decision
        .limits()
        .iter()
        .enumerate()
        .filter(move |(index, limit)| {
            limit.policy().enforcement() == Enforcement::Enforce
                && !is_in_shadow(decision, *index)
                && (limit.is_allowed() || !in_shadow)
        })
}

/// Returns the time for which a limit has no remaining permits.
fn full_for(remaining: u64, window: Duration) -> Duration {
    if remaining == 0 { window } else { Duration::ZERO }
}

/// Returns the remaining permits for a client, as a whole number.
fn remaining(limit: &LimitOutcome, costs: &Costs) -> u64 {
    if limit.is_allowed() && costs.missing_cost(limit).is_none() {
        limit.remaining().whole()
    } else {
        // Fewer permits may remain than a request of this cost needs.
        0
    }
}

/// Returns the time for which the remaining permits have to suffice. `None` for concurrency limits.
fn window(limit: &LimitOutcome, costs: &Costs) -> Option<Duration> {
    let window = limit.effective_window()?;
    let missing = costs.missing_cost(limit);
    Some(
        missing
            .and_then(|cost| limit.available_after(cost))
            .unwrap_or(window),
    )
}

#[cfg(test)]
mod tests;
