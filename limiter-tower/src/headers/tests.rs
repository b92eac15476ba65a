//! Every dialect as an independent parser reads it, and as a client that obeys it fares.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends that way"
)]

mod compliant_client;
mod retry_after;
mod syntax;

use http::HeaderMap;
use limiter_core::{Amount, Decision, LimitRequest, Limiter, ManualClock, Policy};
use sfv::{Dictionary, Item, List, ListEntry, Parser};

use super::{Costs, RateLimitFields, RateLimitHeaders};

const DIALECTS: [RateLimitHeaders; 4] = [
    RateLimitHeaders::Draft11,
    RateLimitHeaders::Draft10,
    RateLimitHeaders::Draft7,
    RateLimitHeaders::Legacy,
];

/// The parsed fields of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    remaining: u64,
    /// In seconds, if present.
    window: Option<u64>,
}

fn headers(decision: &Decision, dialect: RateLimitHeaders) -> HeaderMap {
    headers_at(decision, dialect, Amount::ONE)
}

fn headers_at(decision: &Decision, dialect: RateLimitHeaders, cost: Amount) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(fields) = RateLimitFields::from_decision(decision, dialect, &Costs::Same(cost)) {
        fields.write(&mut headers);
    }
    headers
}

/// The limits in a response, parsed by an independent parser.
fn read(headers: &HeaderMap, dialect: RateLimitHeaders) -> Vec<Read> {
    match dialect {
        RateLimitHeaders::Draft11 | RateLimitHeaders::Draft10 => list(headers, "ratelimit")
            .iter()
            .map(|item| Read {
                remaining: integer(item, "r").unwrap(),
                window: integer(item, "t"),
            })
            .collect(),
        RateLimitHeaders::Draft7 => {
            let text = headers["ratelimit"].as_bytes();
            let parsed: Dictionary = Parser::new(text).parse().unwrap();
            let number = |key: &str| match &parsed[key] {
                ListEntry::Item(item) => number(item),
                ListEntry::InnerList(_) => panic!("{key} is a list"),
            };
            assert_eq!(parsed.len(), 3);
            assert!(number("limit") >= number("remaining"));
            vec![Read {
                remaining: number("remaining"),
                window: Some(number("reset")),
            }]
        }
        _ => {
            let number = |name: &str| headers[name].to_str().unwrap().parse().unwrap();
            vec![Read {
                remaining: number("x-ratelimit-remaining"),
                window: Some(number("x-ratelimit-reset")),
            }]
        }
    }
}

/// The items of a list, over all lines of the header.
fn list(headers: &HeaderMap, name: &str) -> Vec<Item> {
    let lines: Vec<_> = headers.get_all(name).iter().map(|line| line.as_bytes()).collect();
    let parsed: List = Parser::new(&lines.join(&b", "[..])).parse().unwrap();
    let items = parsed.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("{name} contains a list"),
    });
    items.collect()
}

fn number(item: &Item) -> u64 {
    i64::from(item.bare_item.as_integer().unwrap())
        .try_into()
        .unwrap()
}

fn integer(item: &Item, parameter: &str) -> Option<u64> {
    let value = item.params.get(parameter)?.as_integer().unwrap();
    Some(i64::from(value).try_into().unwrap())
}

fn string(item: &Item) -> &str {
    item.bare_item.as_string().unwrap().as_str()
}

fn limiter() -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::in_process().clock(&clock).build(), clock)
}

/// One call for all of these policies.
async fn call(limits: &Limiter, policies: &[Policy]) -> Decision {
    call_at(limits, policies, Amount::ONE).await
}

async fn call_at(limits: &Limiter, policies: &[Policy], cost: Amount) -> Decision {
    let requests = policies
        .iter()
        .map(|policy| LimitRequest::new(policy, "ann").cost(cost));
    limits.check_all(requests).await.unwrap()
}
