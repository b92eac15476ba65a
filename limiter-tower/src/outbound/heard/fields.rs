//! `RateLimit`, in the words of the drafts 07 to 11, and `RateLimit-Remaining` with `RateLimit-Reset`, those of the drafts before.
//!
//! <https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/>: while less than one request is left, the quota is
//! used up for so many seconds, whatever the status of the response.

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

/// The longest of what is said.
pub(super) fn pause(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(&RATELIMIT).iter();
    let lines = lines.filter_map(|line| of_line(line.as_bytes()));
    lines.max().or_else(|| {
        let remaining: u64 = digits(only(headers, &REMAINING)?)?;
        let reset = digits(only(headers, &RESET)?)?;
        (remaining == 0 && reset > 0).then(|| Duration::from_secs(reset))
    })
}

/// A list of items with parameters (`"burst";r=0;t=5`), or the dictionary of draft 07 (`limit=100, remaining=0, reset=5`). Each
/// line is parsed by itself, which a sender may divide only between members.
fn of_line(line: &[u8]) -> Option<Duration> {
    let (mut list, mut dictionary) = (Quotas::default(), Quotas::default());
    if Parser::new(line).parse_list_with_visitor(&mut list).is_ok() {
        return list.pause();
    }
    let parsed = Parser::new(line).parse_dictionary_with_visitor(&mut dictionary);
    parsed.ok().and_then(|()| dictionary.pause())
}

/// What a line says of quotas: the one that is being read, and the longest pause of those before.
#[derive(Default)]
struct Quotas {
    remaining: Option<i64>,
    seconds: Option<i64>,
    longest: Option<Duration>,
}

impl Quotas {
    fn pause(mut self) -> Option<Duration> {
        self.end();
        self.longest
    }

    /// The quota that was being read has ended.
    fn end(&mut self) {
        if let (Some(0), Some(seconds)) = (self.remaining.take(), self.seconds.take())
            && let Ok(seconds @ 1..) = u64::try_from(seconds)
        {
            self.longest = self.longest.max(Some(Duration::from_secs(seconds)));
        }
    }
}

fn integer(item: BareItemFromInput<'_>) -> Option<i64> {
    match item {
        BareItemFromInput::Integer(integer) => Some(integer.into()),
        _ => None,
    }
}

impl<'a> ListVisitor<'a> for Quotas {
    type Error = Infallible;

    fn entry(&mut self) -> Result<impl EntryVisitor<'a>, Infallible> {
        self.end();
        Ok(Quota(self))
    }
}

/// One item of the list; its parameters are read.
struct Quota<'q>(&'q mut Quotas);

impl<'a> ItemVisitor<'a> for Quota<'_> {
    type Error = Infallible;

    fn bare_item(self, item: BareItemFromInput<'a>) -> Result<impl ParameterVisitor<'a>, Infallible> {
        // The name of a policy: anything else is another field's.
        let names = matches!(item, BareItemFromInput::String(_) | BareItemFromInput::Token(_));
        Ok(names.then_some(self))
    }
}

impl<'a> EntryVisitor<'a> for Quota<'_> {
    fn inner_list(self) -> Result<impl InnerListVisitor<'a>, Infallible> {
        Ok(Ignored)
    }
}

impl<'a> ParameterVisitor<'a> for Quota<'_> {
    type Error = Infallible;

    fn parameter(&mut self, key: &'a KeyRef, value: BareItemFromInput<'a>) -> Result<(), Infallible> {
        match key.as_str() {
            "r" => self.0.remaining = integer(value),
            "t" => self.0.seconds = integer(value),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> DictionaryVisitor<'a> for Quotas {
    type Error = Infallible;

    fn entry(&mut self, key: &'a KeyRef) -> Result<impl EntryVisitor<'a>, Infallible> {
        Ok(match key.as_str() {
            "remaining" => Some(Member(&mut self.remaining)),
            "reset" => Some(Member(&mut self.seconds)),
            _ => None,
        })
    }
}

/// One member of the dictionary; its value is read.
struct Member<'q>(&'q mut Option<i64>);

impl<'a> ItemVisitor<'a> for Member<'_> {
    type Error = Infallible;

    fn bare_item(self, item: BareItemFromInput<'a>) -> Result<impl ParameterVisitor<'a>, Infallible> {
        *self.0 = integer(item);
        Ok(Ignored)
    }
}

impl<'a> EntryVisitor<'a> for Member<'_> {
    fn inner_list(self) -> Result<impl InnerListVisitor<'a>, Infallible> {
        *self.0 = None;
        Ok(Ignored)
    }
}
