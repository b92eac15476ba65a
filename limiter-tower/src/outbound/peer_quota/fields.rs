//! Parses `RateLimit` of the drafts 07 to 11, and `RateLimit-Remaining` with `RateLimit-Reset` of
//! the earlier drafts.
//!
//! <https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/>: if less than one
//! request remains, the quota is used up for the stated number of seconds. This does not depend on
//! the status of the response.
//!
//! Tests: `peer_quota/tests.rs` (`exhausted_quota_pauses_for_every_status`,
//! `longest_exhausted_quota_determines_pause`).

use std::convert::Infallible;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use sfv::visitor::{
    DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor,
};
use sfv::{BareItemFromInput, KeyRef, Parser};

use super::{digits, only};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// Returns the longest pause of all fields.
pub(super) fn pause(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(&RATELIMIT).iter();
    let lines = lines.filter_map(|line| of_line(line.as_bytes()));
    lines.max().or_else(|| {
        let remaining: u64 = digits(only(headers, &REMAINING)?)?;
        let reset = digits(only(headers, &RESET)?)?;
        (remaining == 0 && reset > 0).then(|| Duration::from_secs(reset))
    })
}

/// Parses a list of items with parameters (`"burst";r=0;t=5`), or the dictionary of draft 07
/// (`limit=100, remaining=0, reset=5`). Each line is parsed separately, because a sender may split
/// the value only between members.
fn of_line(line: &[u8]) -> Option<Duration> {
    let quotas = Parser::new(line).parse_list_with_visitor(Quotas::default());
    let pause = quotas.or_else(|_| Parser::new(line).parse_dictionary_with_visitor(QuotaState::default()));
    pause.ok().flatten()
}

/// The state of a quota: the remaining permits, and their window in seconds.
#[derive(Default)]
struct QuotaState {
    remaining: Option<i64>,
    seconds: Option<i64>,
}

impl QuotaState {
    fn pause(&self) -> Option<Duration> {
        match (self.remaining, u64::try_from(self.seconds?)) {
            (Some(0), Ok(seconds @ 1..)) => Some(Duration::from_secs(seconds)),
            _ => None,
        }
    }
}

fn integer(item: BareItemFromInput<'_>) -> Option<i64> {
    match item {
        BareItemFromInput::Integer(integer) => Some(integer.into()),
        _ => None,
    }
}

/// The longest pause of a list.
#[derive(Default)]
struct Quotas(Option<Duration>);

impl<'de> ListVisitor<'de> for Quotas {
    type Out = Option<Duration>;
    type Error = Infallible;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, Infallible> {
        Ok(Quota {
            longest: &mut self.0,
            state: QuotaState::default(),
        })
    }

    fn finish(self) -> Result<Option<Duration>, Infallible> {
        Ok(self.0)
    }
}

/// The visitor of a list item, which reads its parameters.
struct Quota<'q> {
    longest: &'q mut Option<Duration>,
    state: QuotaState,
}

impl<'de> EntryVisitor<'de> for Quota<'_> {
    type Error = Infallible;

    fn item(self) -> Result<impl ItemVisitor<'de>, Infallible> {
        Ok(|item: BareItemFromInput<'de>| {
            // Only an item with a policy's name counts; other items belong to other fields.
            let names = matches!(item, BareItemFromInput::String(_) | BareItemFromInput::Token(_));
            Ok::<_, Infallible>(names.then_some(self))
        })
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Infallible> {
        Ok(Ignored)
    }
}

impl<'de> ParameterVisitor<'de> for Quota<'_> {
    type Out = ();
    type Error = Infallible;

    fn parameter(&mut self, key: &'de KeyRef, value: BareItemFromInput<'de>) -> Result<(), Infallible> {
        match key.as_str() {
            "r" => self.state.remaining = integer(value),
            "t" => self.state.seconds = integer(value),
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Infallible> {
        *self.longest = (*self.longest).max(self.state.pause());
        Ok(())
    }
}

impl<'de> DictionaryVisitor<'de> for QuotaState {
    type Out = Option<Duration>;
    type Error = Infallible;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, Infallible> {
        Ok(match key.as_str() {
            "remaining" => Some(Member(&mut self.remaining)),
            "reset" => Some(Member(&mut self.seconds)),
            _ => None,
        })
    }

    fn finish(self) -> Result<Option<Duration>, Infallible> {
        Ok(self.pause())
    }
}

/// The visitor of a dictionary member, which reads its value.
struct Member<'q>(&'q mut Option<i64>);

impl<'de> EntryVisitor<'de> for Member<'_> {
    type Error = Infallible;

    fn item(self) -> Result<impl ItemVisitor<'de>, Infallible> {
        Ok(|item: BareItemFromInput<'de>| {
            *self.0 = integer(item);
            Ok::<_, Infallible>(Ignored)
        })
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Infallible> {
        *self.0 = None;
        Ok(Ignored)
    }
}
