//! `POST /json`: Envoy's rate limit service for clients without gRPC, as envoyproxy/ratelimit
//! offers it.
//!
//! Bodies follow the JSON mapping of Protocol Buffers: names in lowerCamelCase or as in the schema,
//! enumerations by name or number, 64-bit numbers as numbers or strings, absent fields for default
//! values, null for an absent field. The status is 200 or 429. Errors are problem documents: 400
//! for invalid requests as in the original, but 503 when no decision was possible, so that clients
//! can tell the two apart. Tests: below.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prost_types::value::Kind;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::gateway::envoy::messages::{
    Code, DescriptorStatus, Entry, LimitOverride, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    Unit,
};
use crate::gateway::http::guard::AdmittedCall;
use crate::gateway::http::openapi::ProblemResponses;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::request;

/// The largest number below which each whole number has a form of its own: 2^53.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// `POST /json`
#[utoipa::path(
    post,
    path = "/json",
    request_body = RateLimitBody,
    responses(
        (status = 200, description = "allowed", body = Object, content_type = "application/json"),
        (status = 429, description = "limited", body = Object, content_type = "application/json"),
        ProblemResponses,
    ),
)]
pub(super) async fn should_rate_limit(call: AdmittedCall) -> Result<Response, Problem> {
    let request: RateLimitBody = request::read(&call.body)?;
    let AdmittedCall { caller, .. } = &call;
    let answer = caller
        .gateway
        .rate_limit_of_peer(caller.client(), caller.peer, request.into_message())
        .await;
    let answer = answer.map_err(|status| Problem::of_status(&status))?;
    let status = match answer.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::OK,
    };
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    Ok((status, content_type, response_json(&answer).to_string()).into_response())
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct RateLimitBody {
    #[serde(deserialize_with = "or_default")]
    domain: String,
    #[serde(deserialize_with = "or_default")]
    descriptors: Vec<DescriptorBody>,
    #[serde(alias = "hits_addend", deserialize_with = "number")]
    hits_addend: Option<u32>,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct DescriptorBody {
    #[serde(deserialize_with = "or_default")]
    entries: Vec<EntryBody>,
    limit: Option<OverrideBody>,
    #[serde(alias = "hits_addend", deserialize_with = "number")]
    hits_addend: Option<u64>,
    #[serde(alias = "is_negative_hits", deserialize_with = "or_default")]
    is_negative_hits: bool,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct EntryBody {
    #[serde(deserialize_with = "or_default")]
    key: String,
    #[serde(deserialize_with = "or_default")]
    value: String,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct OverrideBody {
    #[serde(alias = "requests_per_unit", deserialize_with = "number")]
    requests_per_unit: Option<u32>,
    #[serde(deserialize_with = "unit")]
    #[schema(value_type = String)]
    unit: i32,
    #[serde(alias = "unit_multiplier", deserialize_with = "number")]
    unit_multiplier: Option<u32>,
}

impl RateLimitBody {
    fn into_message(self) -> RateLimitRequest {
        let descriptors = self
            .descriptors
            .into_iter()
            .map(|descriptor| RateLimitDescriptor {
                entries: descriptor
                    .entries
                    .into_iter()
                    .map(|EntryBody { key, value }| Entry { key, value })
                    .collect(),
                limit: descriptor.limit.map(|limit| LimitOverride {
                    requests_per_unit: limit.requests_per_unit.unwrap_or_default(),
                    unit: limit.unit,
                    unit_multiplier: limit.unit_multiplier,
                }),
                hits_addend: descriptor.hits_addend,
                is_negative_hits: descriptor.is_negative_hits,
            });
        RateLimitRequest {
            domain: self.domain,
            descriptors: descriptors.collect(),
            hits_addend: self.hits_addend.unwrap_or_default(),
        }
    }
}

/// Returns a value, or the default value for null.
fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// Returns a number, or a string of digits.
fn number<'de, D, N>(from: D) -> Result<Option<N>, D::Error>
where
    D: Deserializer<'de>,
    N: TryFrom<u64>,
{
    let value = Value::deserialize(from)?;
    let number = match &value {
        Value::Null => return Ok(None),
        Value::Number(number) => number.as_u64().or_else(|| whole(number.as_f64()?)),
        Value::String(text) => text.parse().ok().or_else(|| whole(text.parse().ok()?)),
        _ => None,
    };
    let number = number.and_then(|number| N::try_from(number).ok());
    number.map(Some).ok_or_else(|| {
        let bits = 8 * size_of::<N>();
        unexpected("a number", &value, &format!("a whole number of {bits} bits"))
    })
}

/// Returns the whole number of a notation with a fraction or an exponent, such as `1.0` or `1e2`.
fn whole(number: f64) -> Option<u64> {
    let is_exact = number.fract() == 0.0 && (0.0..=MAX_EXACT).contains(&number);
    is_exact.then(|| format!("{number:.0}").parse().ok()).flatten()
}

/// Returns a unit by name or number.
fn unit<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
    let value = Value::deserialize(from)?;
    let unit = match &value {
        Value::Null => Some(i32::default()),
        Value::Number(number) => number.as_i64().and_then(|number| i32::try_from(number).ok()),
        Value::String(name) => {
            let mut units = UNITS.iter();
            units.find(|(of, _)| of == name).map(|(_, unit)| i32::from(*unit))
        }
        _ => None,
    };
    unit.ok_or_else(|| {
        let names: Vec<_> = UNITS.iter().map(|(name, _)| *name).collect();
        unexpected("unit", &value, &format!("one of {}", names.join(", ")))
    })
}

/// Returns the error of a value of another form.
fn unexpected<E: serde::de::Error>(name: &str, value: &Value, expected: &str) -> E {
    let shown = value.to_string();
    E::custom(format!("{name} is `{shown:.40}`, expected {expected}"))
}

const UNITS: [(&str, Unit); 8] = [
    ("UNKNOWN", Unit::Unknown),
    ("SECOND", Unit::Second),
    ("MINUTE", Unit::Minute),
    ("HOUR", Unit::Hour),
    ("DAY", Unit::Day),
    ("MONTH", Unit::Month),
    ("YEAR", Unit::Year),
    ("WEEK", Unit::Week),
];

fn unit_name(unit: Unit) -> &'static str {
    let names = UNITS.iter();
    let mut names = names.filter(|(_, of)| *of == unit).map(|(name, _)| *name);
    names.next().unwrap_or("UNKNOWN")
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Unknown => "UNKNOWN",
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

fn response_json(answer: &RateLimitResponse) -> Value {
    let mut fields = Map::new();
    fields.insert("overallCode".into(), json!(code_name(answer.overall_code())));
    let statuses: Vec<Value> = answer.statuses.iter().map(status_json).collect();
    insert_unless_empty(&mut fields, "statuses", statuses);
    let headers = answer.response_headers_to_add.iter();
    let headers: Vec<Value> = headers
        .map(|header| json!({"key": header.key, "value": header.value}))
        .collect();
    insert_unless_empty(&mut fields, "responseHeadersToAdd", headers);
    if let Some(metadata) = &answer.dynamic_metadata {
        fields.insert("dynamicMetadata".into(), struct_json(metadata));
    }
    Value::Object(fields)
}

fn insert_unless_empty(fields: &mut Map<String, Value>, name: &str, list: Vec<Value>) {
    if !list.is_empty() {
        fields.insert(name.to_owned(), Value::Array(list));
    }
}

fn status_json(status: &DescriptorStatus) -> Value {
    let mut fields = Map::new();
    fields.insert("code".into(), json!(code_name(status.code())));
    if let Some(limit) = &status.current_limit {
        let mut shown = Map::new();
        shown.insert("requestsPerUnit".into(), json!(limit.requests_per_unit));
        shown.insert("unit".into(), json!(unit_name(limit.unit())));
        shown.insert("name".into(), json!(limit.name));
        if let Some(multiplier) = limit.unit_multiplier {
            shown.insert("unitMultiplier".into(), json!(multiplier));
        }
        fields.insert("currentLimit".into(), Value::Object(shown));
    }
    if status.limit_remaining > 0 {
        fields.insert("limitRemaining".into(), json!(status.limit_remaining));
    }
    if let Some(reset) = &status.duration_until_reset {
        // Durations have whole seconds here.
        fields.insert("durationUntilReset".into(), json!(format!("{}s", reset.seconds)));
    }
    Value::Object(fields)
}

fn struct_json(fields: &prost_types::Struct) -> Value {
    let fields = fields.fields.iter();
    Value::Object(
        fields
            .map(|(name, value)| (name.clone(), value_json(value)))
            .collect(),
    )
}

fn value_json(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(flag)) => json!(flag),
        Some(Kind::StructValue(fields)) => struct_json(fields),
        Some(Kind::ListValue(list)) => Value::Array(list.values.iter().map(value_json).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RateLimitRequest, serde_json::Error> {
        serde_json::from_str::<RateLimitBody>(text).map(RateLimitBody::into_message)
    }

    #[test]
    fn both_spellings_of_the_json_mapping_are_accepted() {
        let camel = r#"{"domain":"edge","hitsAddend":2,"descriptors":[{"entries":[{"key":"a","value":"b"}],
            "hitsAddend":"3","isNegativeHits":true,
            "limit":{"requestsPerUnit":5,"unit":"HOUR","unitMultiplier":2}}]}"#;
        let schema = r#"{"domain":"edge","hits_addend":2,"descriptors":[{"entries":[{"key":"a","value":"b"}],
            "hits_addend":3,"is_negative_hits":true,
            "limit":{"requests_per_unit":5,"unit":3,"unit_multiplier":2}}]}"#;
        let message = parse(camel).unwrap();
        assert_eq!(message, parse(schema).unwrap());
        let descriptor = &message.descriptors[0];
        assert_eq!(
            (
                message.hits_addend,
                descriptor.hits_addend,
                descriptor.is_negative_hits
            ),
            (2, Some(3), true)
        );
        assert_eq!(descriptor.limit.as_ref().unwrap().unit(), Unit::Hour);
    }

    #[test]
    fn whole_numbers_in_any_notation_are_accepted() {
        let text = r#"{"hitsAddend":2.0,"descriptors":[{"hitsAddend":"1e2"},{"hitsAddend":1E1}]}"#;
        let message = parse(text).unwrap();
        let descriptors = message.descriptors.iter().map(|of| of.hits_addend);
        assert_eq!(message.hits_addend, 2);
        assert_eq!(descriptors.collect::<Vec<_>>(), [Some(100), Some(10)]);
        for number in ["0.5", "1e-1", "1e30", "-1.0", "\"NaN\"", "\"inf\""] {
            let text = format!(r#"{{"descriptors":[{{"hitsAddend":{number}}}]}}"#);
            assert!(parse(&text).is_err(), "{number}");
        }
    }

    #[test]
    fn null_is_the_default_value() {
        let nulls = r#"{"domain":null,"hitsAddend":null,"descriptors":[
            {"entries":null,"limit":null,"hitsAddend":null,"isNegativeHits":null},
            {"entries":[{"key":null,"value":null}],
                "limit":{"requestsPerUnit":null,"unit":null,"unitMultiplier":null}}]}"#;
        let absent = r#"{"descriptors":[{},{"entries":[{}],"limit":{}}]}"#;
        assert_eq!(parse(nulls).unwrap(), parse(absent).unwrap());
        assert_eq!(
            parse(r#"{"descriptors":null}"#).unwrap(),
            RateLimitRequest::default()
        );
        assert!(parse(r#"{"descriptors":[null]}"#).is_err());
    }

    #[test]
    fn errors_name_the_value_and_the_expectation() {
        for (text, value, expected) in [
            (r#"{"hitsAddend":-1}"#, "`-1`", "a whole number of 32 bits"),
            (r#"{"hitsAddend":4294967296}"#, "`4294967296`", "a whole number"),
            (r#"{"hitsAddend":[]}"#, "`[]`", "a whole number"),
            (
                r#"{"descriptors":[{"limit":{"unit":"AGE"}}]}"#,
                "`\"AGE\"`",
                "SECOND",
            ),
            (r#"{"descriptors":[{"limit":{"unit":1.5}}]}"#, "`1.5`", "SECOND"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(value) && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn malformed_requests_are_rejected() {
        for text in [
            r#"{"domain":"edge","surplus":1}"#,
            r#"{"hitsAddend":4294967296}"#,
            r#"{"hitsAddend":-1}"#,
            r#"{"descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}"#,
            r#"{"descriptors":[{"hitsAddend":"many"}]}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(
            parse(r#"{"domain":"edge","hitsAddend":null}"#)
                .unwrap()
                .hits_addend,
            0
        );
    }
}
