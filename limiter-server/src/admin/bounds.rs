//! The bounds within which editors change numbers. Tests: below.

use limiter_core::Policy;
use serde::{Deserialize, Serialize};

use crate::policy_text::{PolicyText, hourly_rate};

/// The bounds of an app. An absent bound does not limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// The smallest capacity, limit or maximum of a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_capacity: Option<u64>,
    /// The largest capacity, limit or maximum of a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_capacity: Option<u64>,
    /// The lowest average rate, such as `1/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<String>,
    /// The highest average rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<String>,
}

impl Bounds {
    /// Checks the rates, and that a value is between the bounds.
    ///
    /// # Errors
    ///
    /// The reason as one message.
    pub fn validate(&self) -> Result<(), String> {
        let parsed = |rate: &Option<String>| rate.as_deref().map(parse_rate).transpose();
        if let (Some(min), Some(max)) = (parsed(&self.min_rate)?, parsed(&self.max_rate)?)
            && min > max
        {
            let [min, max] = [&self.min_rate, &self.max_rate].map(|of| of.as_deref().unwrap_or_default());
            return Err(format!("min_rate is {min}, expected at most the max_rate {max}"));
        }
        match (self.min_capacity, self.max_capacity) {
            (Some(min), Some(max)) if min > max => Err(format!(
                "min_capacity is {min}, expected at most the max_capacity {max}"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the first bound that changed numbers of a policy or of one of its quotas exceed, as
    /// a sentence. An owner can have saved others beyond the bounds.
    #[must_use]
    pub fn exceeded_by(&self, text: &PolicyText, before: Option<&PolicyText>) -> Option<String> {
        let policy = text.entry().policy();
        let is_changed = before.is_none_or(|before| {
            let before = before.entry().policy();
            (policy.quota(), hourly_rate(policy)) != (before.quota(), hourly_rate(before))
        });
        let known = before.map_or(&[][..], PolicyText::overrides);
        let changed = text.overrides().iter().filter(|own| !known.contains(own));
        Some(policy)
            .filter(|_| is_changed)
            .into_iter()
            .chain(changed.map(|own| own.policy()))
            .find_map(|policy| self.exceeded(policy))
    }

    fn exceeded(&self, policy: &Policy) -> Option<String> {
        let capacity = policy.quota().as_thousandths();
        let whole = |bound: u64| u128::from(bound) * 1_000;
        if let Some(bound) = self.min_capacity.filter(|bound| capacity < whole(*bound)) {
            return Some(format!("{policy} is below the minimum capacity {bound}"));
        }
        if let Some(bound) = self.max_capacity.filter(|bound| capacity > whole(*bound)) {
            return Some(format!("{policy} is above the maximum capacity {bound}"));
        }
        if policy.algorithm_name() == "concurrency" {
            return None;
        }
        let rate = hourly_rate(policy);
        let bound = |text: &Option<String>| text.as_deref().and_then(|text| parse_rate(text).ok());
        if bound(&self.min_rate).is_some_and(|bound| rate < bound) {
            let bound = self.min_rate.as_deref().unwrap_or_default();
            return Some(format!("{policy} is below the minimum rate {bound}"));
        }
        if bound(&self.max_rate).is_some_and(|bound| rate > bound) {
            let bound = self.max_rate.as_deref().unwrap_or_default();
            return Some(format!("{policy} is above the maximum rate {bound}"));
        }
        None
    }
}

/// Returns a rate in thousandths of a permit per hour.
fn parse_rate(text: &str) -> Result<u128, String> {
    let policy = Policy::token_bucket("bound")
        .capacity(1_000_u32)
        .rate(text)
        .build();
    policy
        .map(|policy| hourly_rate(&policy))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(numbers: &str) -> PolicyText {
        let text = format!("[policy.a]\nalgorithm = 'token_bucket'\n{numbers}");
        PolicyText::parse("a", &text).unwrap()
    }

    #[test]
    fn bounds_limit_capacity_rate_and_quotas() {
        let bounds = Bounds {
            min_capacity: Some(5),
            max_capacity: Some(50),
            min_rate: Some("1/s".to_owned()),
            max_rate: Some("10/s".to_owned()),
        };
        assert_eq!(bounds.validate(), Ok(()));
        for (numbers, expected) in [
            ("capacity = 5\nrate = '1/s'", None),
            ("capacity = 50\nrate = '10/s'", None),
            ("capacity = 4\nrate = '1/s'", Some("minimum capacity")),
            ("capacity = 51\nrate = '1/s'", Some("maximum capacity")),
            ("capacity = 5\nrate = '59/min'", Some("minimum rate")),
            ("capacity = 5\nrate = '601/min'", Some("maximum rate")),
            (
                "capacity = 5\nrate = '1/s'\n[[override]]\npolicy = 'a'\nkey = 'k'\ncapacity = 51\nrate = '1/s'",
                Some("maximum capacity"),
            ),
        ] {
            let found = bounds.exceeded_by(&text(numbers), None);
            match expected {
                None => assert_eq!(found, None, "{numbers}"),
                Some(part) => assert!(found.is_some_and(|of| of.contains(part)), "{numbers}"),
            }
        }
        assert_eq!(
            Bounds::default().exceeded_by(&text("capacity = 1\nrate = '1/s'"), None),
            None
        );
    }

    #[test]
    fn malformed_rate_is_rejected() {
        let bounds = Bounds {
            max_rate: Some("fast".to_owned()),
            ..Bounds::default()
        };
        assert!(bounds.validate().is_err());
    }
}
