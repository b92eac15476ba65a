//! What a client is told of its limits in headers. Pure: a decision in, header values out.
//!
//! A dialect is a set of headers. All of them say the same of a limit: how much is left, and the
//! time in which the client may use that and no more ([`LimitOutcome::effective_window`]). So a
//! client that keeps to what it is told, has its key for itself, and whose requests cost a permit
//! each, is never denied. Nor is one whose requests all cost the same, if it heeds each answer:
//! where no more of them fit nothing is said to remain, until the next one does
//! ([`LimitOutcome::available_after`]).

mod costs;
mod draft7;
mod header_buffer;
mod lists;
mod unsettled;

use std::time::Duration;

use bytes::Bytes;
use http::header::{Entry, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use limiter_core::__private::whole_seconds;
use limiter_core::{Decision, Enforcement, LimitOutcome};

pub(crate) use costs::Costs;
use header_buffer::HeaderBuffer;
pub(crate) use unsettled::Unsettled;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The headers in which HTTP clients are told of their limits, on responses to allowed and to
/// denied requests ([`ResponseConfig::headers`](crate::ResponseConfig::headers)).
///
/// For a bucket of 100 that fills in a minute, of which 70 are left:
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
/// What remains is counted in whole permits, rounded down: a request that costs more than one
/// permit takes as many. It is 0 where the limit denies, and where less is left than the request
/// has cost: then the window ends when another such request has room. Times are whole seconds,
/// rounded up. Quotas are rounded down. No number is larger than structured fields allow (15
/// digits).
///
/// Of a limit whose cost is [settled](crate::RateLimitLayer::settle) it is told what remains
/// after that. Where a response's head goes out before, nothing of it is said but its policy, and
/// in [`Legacy`](Self::Legacy) nothing at all: what remains is not known yet.
///
/// Limits that are in shadow are not told of: they deny nobody. Nor is it told who decided, unless
/// [that is asked for](crate::ResponseConfig::with_origin_header).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RateLimitHeaders {
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11 (structured
    /// fields, RFC 9651). The default.
    ///
    /// Each limit of a decision is an item: `q` is its quota, `w` the time after which nothing
    /// remains of a fully used quota (a window's length; the time in which a bucket fills), left
    /// out where it is less than a second. `r` is what remains, and `t` the effective window, in
    /// which the client may use no more than `r`. A limit of what is in flight has neither `w` nor
    /// `t`, and says `qu="concurrent-requests"`.
    ///
    /// The name of a policy is printable ASCII there; what else it contains, and the percent sign,
    /// is percent-encoded.
    #[default]
    Draft11,
    /// The same two headers as draft 10 has them: `t` is the time until more is available than `r`.
    Draft10,
    /// The headers of draft 7, of the same names, whose `RateLimit` tells of one limit alone: the
    /// one of which the least remains. `reset` is what `t` is in draft 11. In `RateLimit-Policy` no
    /// two policies may have the same quota, so the first of them stands for both; a window below a
    /// second is told as one. Limits of what is in flight cannot be told.
    Draft7,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of the limit of which
    /// the least remains. The reset is in seconds from now on, and not a moment: what `t` is in
    /// draft 11.
    Legacy,
    /// No headers about limits. `Retry-After` stays.
    None,
}

/// What a response tells its client, ready to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RateLimitFields {
    dialect: RateLimitHeaders,
    /// The values, one after the other.
    values: Bytes,
    /// Where the first and the second of them end.
    ends: [usize; 2],
    /// For so many seconds no such request has room; 0 where one has now.
    full_for: u64,
}

/// What was written of a decision.
struct MergedFields {
    ends: [usize; 2],
    /// How long nothing remains of one of its limits at least.
    full_for: Duration,
}

impl RateLimitFields {
    /// What is to be told of a decision, if anything.
    pub(crate) fn from_decision(
        decision: &Decision,
        dialect: RateLimitHeaders,
        costs: &Costs,
    ) -> Option<Self> {
        Self::but_of(&Unsettled::default(), decision, dialect, costs)
    }

    /// The same, without what remains of those of its limits that are open still.
    pub(crate) fn but_of(
        open: &Unsettled,
        decision: &Decision,
        dialect: RateLimitHeaders,
        costs: &Costs,
    ) -> Option<Self> {
        let mut text = HeaderBuffer::default();
        let written = match dialect {
            RateLimitHeaders::Draft11 | RateLimitHeaders::Draft10 => {
                lists::write(decision, open, dialect, costs, &mut text)
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

    /// Writes it, beside what is there already.
    ///
    /// Where a layer further in has told of its limits, lists become longer, and of two that tell
    /// of one limit alone the one of which less remains is told; where as much remains, the one
    /// that the client has to wait for longer. What is in another form, a handler's own, stays as
    /// it is.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        match self.dialect {
            RateLimitHeaders::Draft11 | RateLimitHeaders::Draft10 => {
                for name in [RATELIMIT, RATELIMIT_POLICY] {
                    let Some(value) = self.value(&name) else { continue };
                    match headers.try_entry(name) {
                        Ok(Entry::Vacant(place)) => drop(place.try_insert(value)),
                        Ok(Entry::Occupied(mut others)) if lists::is_list(others.get()) => {
                            others.append(value)
                        }
                        // A map that is full, of the inner service's headers, stays as it is.
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
            self.put_off(headers);
        }
    }

    /// What is to be tried again before these limits have room is tried then: whoever said so knew
    /// nothing of them.
    #[cold]
    fn put_off(&self, headers: &mut HeaderMap) {
        let after = headers.get_mut(RETRY_AFTER);
        let said = after.and_then(|after| Some((after.to_str().ok()?.parse().ok()?, after)));
        if let Some((seconds, after)) = said {
            if self.full_for > seconds {
                *after = self.full_for.into();
            }
        }
    }

    /// Replaces what is told of another limit, if this one is reached first by what the headers
    /// `telling` say: of what remains, and for how long.
    fn replace(&self, headers: &mut HeaderMap, telling: [&HeaderName; 2], names: &[HeaderName]) {
        let [remaining, reset] = telling;
        let keeps = headers.get(remaining).is_some_and(|told| {
            let (own, until) = (self.value(remaining), self.value(reset));
            let own = own.and_then(|told| draft7::standing(&told, until.as_ref()));
            let others = draft7::standing(told, headers.get(reset));
            others.is_none() || others <= own
        });
        if keeps {
            return;
        }
        for name in names {
            if let Some(value) = self.value(name) {
                drop(headers.try_insert(name, value));
            }
        }
    }

    /// The value of one of the headers.
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
        // What is written is ASCII and printable, and the ends lie within it.
        HeaderValue::from_maybe_shared(self.values.slice(range)).ok()
    }
}

/// The limits that are told of: those that would deny a request, if they do not.
fn fields_for(decision: &Decision) -> impl Iterator<Item = &LimitOutcome> {
    placed(decision).map(|(_, limit)| limit)
}

/// Those of them of which it is known what remains.
fn known_of<'a>(decision: &'a Decision, open: &'a Unsettled) -> impl Iterator<Item = &'a LimitOutcome> {
    placed(decision).filter_map(|(place, limit)| (!open.has(place)).then_some(limit))
}

fn placed(decision: &Decision) -> impl Iterator<Item = (usize, &LimitOutcome)> {
    let in_shadow = decision.is_allowed() && !decision.is_degraded();
    decision.limits().iter().enumerate().filter(move |(_, limit)| {
        limit.policy().enforcement() == Enforcement::Enforce && (limit.is_allowed() || !in_shadow)
    })
}

/// For how long a limit has no room of which so much remains in this time.
fn full_for(remaining: u64, window: Duration) -> Duration {
    if remaining == 0 { window } else { Duration::ZERO }
}

/// What remains for a client, in whole permits.
fn remaining(limit: &LimitOutcome, costs: &Costs) -> u64 {
    if limit.is_allowed() && costs.wanting(limit).is_none() {
        limit.remaining().whole()
    } else {
        // Something may remain, but less than such a request costs.
        0
    }
}

/// The time in which a client may use that. `None` for a limit of what is in flight.
fn window(limit: &LimitOutcome, costs: &Costs) -> Option<Duration> {
    let window = limit.effective_window()?;
    let wanting = costs.wanting(limit);
    Some(
        wanting
            .and_then(|cost| limit.available_after(cost))
            .unwrap_or(window),
    )
}

#[cfg(test)]
mod tests;
