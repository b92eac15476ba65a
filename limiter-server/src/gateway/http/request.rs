//! The JSON bodies of requests, and their conversion to keys, costs and limits.
//!
//! A request names one limit, or a list of at most `MAX_LIMITS`. A cost is converted through the
//! decimal text of its number, since an amount has exact thousandths. The parts of a key are
//! escaped, so that two different lists of parts are two keys. An unknown field is an error.
//!
//! Tests: `tests/http_api.rs`.

use std::borrow::Cow;

use limiter_core::{Amount, ConfigError, Key};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::gateway::http::problem::Problem;
use crate::key_text::joined;

/// The largest number of limits in one request.
pub(super) const MAX_LIMITS: usize = 100;

/// A key: a text, or parts that are kept apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(
    untagged,
    expecting = "the value of `key` is neither a text nor a list of texts"
)]
pub(super) enum KeyBody {
    Text(String),
    Parts(Vec<String>),
}

impl KeyBody {
    pub(super) fn to_key(&self) -> Key<'static> {
        match self {
            Self::Text(text) => Key::from(text.as_str()).into_owned(),
            Self::Parts(parts) => {
                let mut key = Key::global().into_owned();
                for (number, part) in parts.iter().enumerate() {
                    if number > 0 {
                        key = key.text(":");
                    }
                    key = key.part(part);
                }
                key
            }
        }
    }
}

impl std::fmt::Display for KeyBody {
    /// Writes the text, or the parts separated by ` / `.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&joined([text])),
            Self::Parts(parts) => f.write_str(&joined(parts)),
        }
    }
}

impl Default for KeyBody {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// One limit of a request.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitBody {
    pub(super) policy: String,
    #[serde(default)]
    pub(super) key: KeyBody,
    #[schema(value_type = Option<f64>)]
    cost: Option<serde_json::Number>,
}

impl LimitBody {
    /// Returns the cost; 1 by default.
    pub(super) fn cost(&self) -> Result<Amount, Problem> {
        match &self.cost {
            None => Ok(Amount::ONE),
            Some(number) => amount("cost", number),
        }
    }
}

/// One limit, or a list of limits.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsBody {
    policy: Option<String>,
    key: Option<KeyBody>,
    #[schema(value_type = Option<f64>)]
    cost: Option<serde_json::Number>,
    limits: Option<Vec<LimitBody>>,
    /// Of a reservation: when it expires, in milliseconds. An error in other calls.
    pub(super) expires_in_ms: Option<u64>,
}

impl LimitsBody {
    /// Returns the policy and the key of each limit, in their order.
    pub(super) fn names(&self) -> Vec<(String, KeyBody)> {
        let listed = self.limits.iter().flatten();
        let listed = listed.map(|limit| (limit.policy.clone(), limit.key.clone()));
        let alone = self.policy.iter();
        let alone = alone.map(|policy| (policy.clone(), self.key.clone().unwrap_or_default()));
        alone.chain(listed).collect()
    }

    /// Returns the limits in their order.
    pub(super) fn into_limits(self) -> Result<Vec<LimitBody>, Problem> {
        if let Some(millis) = self.expires_in_ms {
            return Err(Problem::bad_request(
                format!("`expires_in_ms` is {millis}, but only `reserve` accepts it; remove the field")
                    .into(),
            ));
        }
        match (self.policy, self.limits) {
            (Some(policy), None) => Ok(vec![LimitBody {
                policy,
                key: self.key.unwrap_or_default(),
                cost: self.cost,
            }]),
            (None, Some(_)) if self.key.is_some() || self.cost.is_some() => Err(Problem::bad_request(
                "`key` and `cost` belong to each entry of `limits`".into(),
            )),
            (None, Some(limits)) if limits.is_empty() => Err(Problem::bad_request(
                "`limits` is empty, expected at least one".into(),
            )),
            (None, Some(limits)) if limits.len() > MAX_LIMITS => Err(Problem::bad_request(
                format!(
                    "`limits` has {} entries, expected at most {MAX_LIMITS}",
                    limits.len()
                )
                .into(),
            )),
            (None, Some(limits)) => Ok(limits),
            _ => Err(Problem::bad_request(
                "expected either `policy` or `limits`".into(),
            )),
        }
    }
}

/// The id of a permit.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct IdBody {
    pub(super) id: String,
}

/// The settlement of a reservation.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleBody {
    pub(super) id: String,
    /// The amount that was used, of a reservation of one limit.
    #[schema(value_type = Option<f64>)]
    actual: Option<serde_json::Number>,
    /// The amounts in the order of the limits.
    #[schema(value_type = Option<Vec<f64>>)]
    actuals: Option<Vec<serde_json::Number>>,
}

impl SettleBody {
    /// Returns the amounts that were used, in the order of the limits.
    pub(super) fn actuals(&self) -> Result<Vec<Amount>, Problem> {
        let numbers = match (&self.actual, &self.actuals) {
            (Some(actual), None) => std::slice::from_ref(actual),
            (None, Some(actuals)) => actuals,
            _ => {
                return Err(Problem::bad_request(
                    "expected either `actual` or `actuals`".into(),
                ));
            }
        };
        let field = if self.actual.is_some() {
            "actual"
        } else {
            "actuals"
        };
        numbers.iter().map(|number| amount(field, number)).collect()
    }
}

/// Converts the number of a field.
fn amount(field: &str, number: &serde_json::Number) -> Result<Amount, Problem> {
    let text = number.to_string();
    let invalid = |error: ConfigError| Problem::bad_request(Cow::Owned(format!("`{field}`: {error}")));
    Amount::try_from(text.as_str()).map_err(invalid)
}

/// Reads a body.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // One check of the whole body replaces those of its texts.
    let read = match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(bytes),
    };
    read.map_err(|error| Problem::bad_request(Cow::Owned(format!("cannot read the JSON body: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(number: &str) -> Result<Amount, Problem> {
        let body = format!(r#"{{ "policy": "search", "cost": {number} }}"#);
        read::<LimitBody>(body.as_bytes()).unwrap().cost()
    }

    #[test]
    fn error_of_a_key_names_the_field_and_the_expectation() {
        for body in [
            r#"{ "policy": "search", "key": 5 }"#,
            r#"{ "limits": [{ "policy": "search", "key": ["a", 5] }] }"#,
        ] {
            let error = serde_json::from_str::<LimitsBody>(body).unwrap_err().to_string();
            assert!(
                error.contains("`key`") && error.contains("a list of texts"),
                "{error}"
            );
        }
    }

    #[test]
    fn lifetime_of_a_call_without_a_reservation_is_an_error() {
        let body = br#"{ "policy": "search", "expires_in_ms": 500 }"#;
        let mut body: LimitsBody = read(body).unwrap();
        let problem = format!("{:?}", body.clone().into_limits().unwrap_err());
        assert!(problem.contains("`expires_in_ms` is 500"), "{problem}");
        body.expires_in_ms = None;
        assert!(body.into_limits().is_ok());
    }

    /// Numbers of JSON become doubles, which distinguish thousandths up to the largest capacity.
    #[test]
    fn costs_are_exact_to_a_thousandth() {
        const LARGEST: u64 = 1 << 52;
        let large = [9_007_199_254_741, LARGEST / 2 - 1_000, LARGEST - 1_000];
        for start in [0].into_iter().chain(large) {
            for thousandths in start..=start + 1_000 {
                let number = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
                let cost = cost(&number).unwrap();
                assert_eq!(cost, Amount::from_thousandths(thousandths), "{number}");
            }
        }
        for number in ["0.0001", "1.0005", "4503599627.3704961", "-1", "1e20"] {
            assert!(cost(number).is_err(), "{number}");
        }
    }
}
