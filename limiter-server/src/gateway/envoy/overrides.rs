//! The limit that a descriptor carries itself.
//!
//! It is a fixed window with state of its own for each policy name, unit and key. It needs no
//! matching policy and is never in shadow mode. Units are aligned to UTC where the length of the
//! period allows that; a year begins with the first request.

use limiter_core::{Enforcement, Key, Policy, UtcOffset};
use tonic::Status;

use crate::gateway::envoy::messages::{Entry, LimitOverride, Unit};
use crate::gateway::rules::{DescriptorEntry, MatchedLimit, joined_keys, key_of};

/// The policy, which is absent for a limit of zero, the key, and the values of the key.
type Resolved = (Option<Policy>, Key<'static>, Vec<String>);

/// Makes a policy of a limit in a descriptor.
pub(super) fn resolve(
    limit: &LimitOverride,
    domain: &str,
    entries: &[Entry],
    matched: Option<MatchedLimit<'_>>,
) -> Result<Resolved, Status> {
    let (name, key, values) = match matched {
        Some(matched) => (matched.policy.into_owned(), matched.key, matched.values),
        None => {
            let values = [domain]
                .into_iter()
                .chain(entries.iter().map(DescriptorEntry::value));
            let values: Vec<String> = values.map(str::to_owned).collect();
            let key = key_of(values.iter().map(String::as_str));
            (joined_keys(entries), key, values)
        }
    };
    if limit.requests_per_unit == 0 {
        return Ok((None, key, values));
    }
    let multiplier = limit.unit_multiplier.unwrap_or(1).max(1);
    let policy = policy(&name, limit.unit(), multiplier, limit.requests_per_unit)?;
    Ok((Some(policy), key, values))
}

fn policy(name: &str, unit: Unit, multiplier: u32, permits: u32) -> Result<Policy, Status> {
    let (unit_name, days, seconds) = match unit {
        Unit::Second => ("second", 0, 1),
        Unit::Minute => ("minute", 0, 60),
        Unit::Hour => ("hour", 0, 3_600),
        Unit::Day => ("day", 1, 0),
        Unit::Week => ("week", 7, 0),
        Unit::Month => ("month", 30, 0),
        Unit::Year => ("year", 365, 0),
        Unit::Unknown => return Err(Status::invalid_argument("the limit of a descriptor has no unit")),
    };
    let name = format!("override:{unit_name}x{multiplier}:{name}");
    let length = days * 86_400 + seconds;
    let window = match (unit, multiplier) {
        (Unit::Month, 1) => "month".to_owned(),
        _ => format!("{}s", u64::from(multiplier) * length),
    };
    let builder = || {
        let builder = Policy::fixed_window(&name).limit(permits).window(window.as_str());
        builder.enforcement(Enforcement::Enforce)
    };
    // Only lengths that divide a day, weeks and months can be aligned.
    let aligned = builder().aligned(UtcOffset::UTC).build();
    aligned
        .or_else(|_| builder().build())
        .map_err(|error| Status::invalid_argument(format!("the limit of a descriptor is invalid: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            for multiplier in [1, 7] {
                let policy = policy("p", unit, multiplier, 5).unwrap();
                assert_eq!(policy.quota().whole(), 5);
                assert!(names.insert(policy.name().to_owned()), "{}", policy.name());
            }
        }
        assert!(policy("p", Unit::Unknown, 1, 5).is_err());
    }
}
