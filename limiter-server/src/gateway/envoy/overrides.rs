//! The limit that a descriptor carries itself.
//!
//! It is a fixed window with state of its own for each policy, unit, multiplier and key. It needs
//! no matching policy and is never in shadow mode. Its periods are aligned to UTC: a month has 30
//! days and a year 365 as in the reference implementation, and a week starts on Monday.
//!
//! The name of a policy is a label of metrics and a part of records, so it contains no text of
//! clients: a descriptor without a configured policy uses the name of its unit alone, and the
//! multiplier is a part of the key. Tests: below.

use limiter_core::{Enforcement, Key, Policy, UtcOffset};
use tonic::Status;

use crate::gateway::envoy::messages::{Entry, LimitOverride, Unit};
use crate::gateway::rules::{DescriptorEntry, MatchedLimit, key_of};

/// A limit of a descriptor.
#[derive(Debug)]
pub(super) struct DescriptorLimit {
    /// The policy; `None` for a limit of zero.
    pub(super) policy: Option<Policy>,
    pub(super) key: Key<'static>,
    /// The group of the rule that matches.
    pub(super) group: Option<String>,
    /// The values of the key.
    pub(super) values: Vec<String>,
}

/// Makes a policy of a limit in a descriptor. `configured` is the match of a rule that leads to a
/// policy of the registry.
pub(super) fn resolve(
    limit: &LimitOverride,
    domain: &str,
    entries: &[Entry],
    configured: Option<MatchedLimit<'_>>,
) -> Result<DescriptorLimit, Status> {
    let multiplier = limit.unit_multiplier.unwrap_or(1).max(1);
    let (name, key, group, values) = match configured {
        Some(matched) => {
            let group = matched.rule.and_then(|rule| rule.group()).map(str::to_owned);
            (Some(matched.policy), matched.key, group, matched.values)
        }
        None => {
            // The keys of the entries distinguish descriptors with equal values.
            let parts = entries.iter().flat_map(|entry| [entry.key(), entry.value()]);
            let key = key_of([domain].into_iter().chain(parts));
            let values = entries.iter().map(|entry| entry.value().to_owned());
            let values = [domain.to_owned()].into_iter().chain(values).collect();
            (None, key, None, values)
        }
    };
    let key = match multiplier {
        1 => key,
        _ => Key::global().key(&key).text(":").part(multiplier),
    };
    let policy = match limit.requests_per_unit {
        0 => None,
        permits => Some(policy(name.as_deref(), limit.unit(), multiplier, permits)?),
    };
    Ok(DescriptorLimit {
        policy,
        key,
        group,
        values,
    })
}

fn policy(configured: Option<&str>, unit: Unit, multiplier: u32, permits: u32) -> Result<Policy, Status> {
    const DAY: u64 = 86_400;
    let (unit, seconds) = match unit {
        Unit::Second => ("second", 1),
        Unit::Minute => ("minute", 60),
        Unit::Hour => ("hour", 3_600),
        Unit::Day => ("day", DAY),
        Unit::Week => ("week", 7 * DAY),
        Unit::Month => ("month", 30 * DAY),
        Unit::Year => ("year", 365 * DAY),
        Unit::Unknown => return Err(Status::invalid_argument("the limit of a descriptor has no unit")),
    };
    // Keys with a multiplier have another form, so their policies have other names.
    let plural = if multiplier > 1 { "s" } else { "" };
    let name = match configured {
        Some(configured) => format!("override:{unit}{plural}:{configured}"),
        None => format!("override:{unit}{plural}"),
    };
    Policy::fixed_window(name)
        .limit(permits)
        .window(format!("{}s", u64::from(multiplier) * seconds).as_str())
        .aligned(UtcOffset::UTC)
        .enforcement(Enforcement::Enforce)
        .build()
        .map_err(|error| Status::invalid_argument(format!("the limit of a descriptor is invalid: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(domain: &str, entries: &[(&str, &str)], multiplier: u32) -> (String, Key<'static>) {
        let limit = LimitOverride {
            requests_per_unit: 5,
            unit: Unit::Minute.into(),
            unit_multiplier: Some(multiplier),
        };
        let entries: Vec<Entry> = entries
            .iter()
            .map(|(key, value)| Entry {
                key: (*key).to_owned(),
                value: (*value).to_owned(),
            })
            .collect();
        let resolved = resolve(&limit, domain, &entries, None).unwrap();
        (resolved.policy.unwrap().name().to_owned(), resolved.key)
    }

    #[test]
    fn every_unit_makes_a_policy_of_its_own() {
        let units = [
            Unit::Second,
            Unit::Minute,
            Unit::Hour,
            Unit::Day,
            Unit::Week,
            Unit::Month,
            Unit::Year,
        ];
        let mut names = std::collections::BTreeSet::new();
        for unit in units {
            for configured in [None, Some("p")] {
                for multiplier in [1, 7] {
                    let policy = policy(configured, unit, multiplier, 5).unwrap();
                    assert_eq!(policy.quota().whole(), 5);
                    assert!(names.insert(policy.name().to_owned()), "{}", policy.name());
                }
            }
        }
        assert!(policy(None, Unit::Unknown, 1, 5).is_err());
    }

    #[test]
    fn names_of_policies_contain_no_text_of_clients() {
        let mut names = std::collections::BTreeSet::new();
        let mut keys = std::collections::HashSet::new();
        for number in 0..100 {
            let text = format!("client{number}");
            for multiplier in [1, 2 + number] {
                let (name, key) = resolved("edge", &[("generic_key", &text), (&text, "a")], multiplier);
                names.insert(name);
                keys.insert(key);
            }
        }
        assert_eq!(Vec::from_iter(names), ["override:minute", "override:minutes"]);
        assert_eq!(keys.len(), 200);
    }

    #[test]
    fn different_descriptors_and_multipliers_have_different_keys() {
        let descriptors: [&[(&str, &str)]; 5] = [
            &[("a", "b")],
            &[("a", "b"), ("c", "d")],
            &[("a", "b:c:d")],
            &[("a:b", "c")],
            &[("b", "a")],
        ];
        let mut keys = std::collections::HashSet::new();
        for entries in descriptors {
            for multiplier in [1, 2, 3] {
                let (name, key) = resolved("edge", entries, multiplier);
                assert!(keys.insert((name, key)), "{entries:?}");
            }
        }
    }
}
