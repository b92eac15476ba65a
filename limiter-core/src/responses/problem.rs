//! The JSON representation of a rejection: a problem document (RFC 9457).
//!
//! The types are those that draft-ietf-httpapi-ratelimit-headers registers. A problem without
//! further details than its status has the type `about:blank` and the status's title.
//!
//! Invariant: the document is valid JSON for every text, and contains no internal details. Tests:
//! below (`all_texts_round_trip`, `other_rejections_have_no_type_and_no_internal_details`),
//! `responses/openapi.rs` (the schema), `limiter-tower/tests/frozen.rs`.

use crate::decision::{Decision, LimitOutcome, Rejection};
use crate::policy::Policy;

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const ABNORMAL_USAGE: &str = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
const NO_TYPE: &str = "about:blank";

impl Rejection {
    /// The media type of [`problem_json`](Self::problem_json).
    pub const PROBLEM_JSON: &'static str = "application/problem+json";

    /// Returns the JSON body for a response with the status [`http_status`](Self::http_status) and
    /// the content type [`PROBLEM_JSON`](Self::PROBLEM_JSON): a problem document (RFC 9457).
    ///
    /// Its `detail` is the [`client_message`](Self::client_message). If a limit is reached,
    /// `violated-policies` contains the names of the denying policies, and the type is
    /// `quota-exceeded`, or `abnormal-usage-detected` if a [`Penalty`](crate::penalty::Penalty)
    /// blocks the key.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let policy = Policy::sliding_window("send").limit(1).window("1m").build()?;
    /// let _ = limits.check(&policy, "ann").await?;
    /// let rejection = limits.check(&policy, "ann").await?.require().unwrap_err();
    /// assert_eq!(
    ///     rejection.problem_json(),
    ///     r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#.to_owned()
    ///         + r#""title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"#
    ///         + r#""detail":"rate limit reached, retry after 60 seconds","violated-policies":["send"]}"#
    /// );
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn problem_json(&self) -> String {
        let (kind, title) = match self {
            _ if self.decision().is_some_and(Decision::is_blocked) => (
                ABNORMAL_USAGE,
                "Request not satisfied due to detection of abnormal request pattern",
            ),
            Self::Limited(_) | Self::TimedOut { .. } | Self::NeverFits { .. } => (
                QUOTA_EXCEEDED,
                "Request cannot be satisfied as assigned quota has been exceeded",
            ),
            Self::Paused { .. } => (NO_TYPE, "Too Many Requests"),
            Self::Unavailable { .. } => (NO_TYPE, "Service Unavailable"),
            Self::Forbidden { .. } => (NO_TYPE, "Forbidden"),
            Self::NotConfigured { .. } | Self::Config(_) => (NO_TYPE, "Internal Server Error"),
        };
        let violated = self.violated();
        let names = (kind != NO_TYPE).then(|| violated.iter().map(|policy| policy.name()).collect());
        problem(kind, title, self.http_status(), &self.client_message(), names)
    }

    /// Returns the policies whose limits deny.
    pub(crate) fn violated(&self) -> Vec<&Policy> {
        match self {
            // Denied by a key list; clients must not learn its policy.
            Self::Forbidden { .. } => Vec::new(),
            Self::NeverFits { policy, .. } => vec![policy],
            _ => self
                .decision()
                .map_or(&[][..], Decision::limits)
                .iter()
                .filter(|limit| !limit.is_allowed())
                .map(LimitOutcome::policy)
                .collect(),
        }
    }
}

/// Formats a problem document without details beyond its status.
#[must_use]
pub fn problem_of_status(status: u16, title: &str, detail: &str) -> String {
    problem(NO_TYPE, title, status, detail, None)
}

fn problem(kind: &str, title: &str, status: u16, detail: &str, violated: Option<Vec<&str>>) -> String {
    let mut json = String::with_capacity(256);
    json.push_str("{\"type\":");
    push_string(&mut json, kind);
    json.push_str(",\"title\":");
    push_string(&mut json, title);
    json.push_str(",\"status\":");
    json.push_str(&status.to_string());
    json.push_str(",\"detail\":");
    push_string(&mut json, detail);
    if let Some(violated) = violated {
        json.push_str(",\"violated-policies\":[");
        for (place, name) in violated.into_iter().enumerate() {
            if place > 0 {
                json.push(',');
            }
            push_string(&mut json, name);
        }
        json.push(']');
    }
    json.push('}');
    json
}

/// Writes a string as RFC 8259 defines: quotes, backslashes and control characters are escaped, all
/// other characters are copied.
fn push_string(json: &mut String, text: &str) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            '\0'..='\x1f' => json.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => json.push(character),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::decision::Origin;
    use crate::error::ConfigError;
    use crate::limiter::Limiter;
    use crate::responses::problem::*;
    use crate::support::clock::ManualClock;

    fn parsed(rejection: &Rejection) -> Value {
        serde_json::from_str(&rejection.problem_json()).unwrap()
    }

    /// Read with an independent parser, so that escaping errors are detected.
    #[test]
    fn all_texts_round_trip() {
        let all: String = (0..0x3000_u32).filter_map(char::from_u32).collect();
        for text in [all.as_str(), "", "\"", "a\\", "\u{2028}\u{10ffff}", "]},{\"x\":1"] {
            let json = problem("t", text, 429, text, Some(vec![text, "b"]));
            let value: Value = serde_json::from_str(&json).unwrap();
            assert_eq!(
                value,
                json!({"type": "t", "title": text, "status": 429, "detail": text, "violated-policies": [text, "b"]})
            );
        }
    }

    #[tokio::test]
    async fn only_denying_limits_are_named() {
        let limits = Limiter::in_process().clock(&ManualClock::new()).build();
        let policy = |name: &str, limit: u32| {
            Policy::sliding_window(name)
                .limit(limit)
                .window("1m")
                .build()
                .unwrap()
        };
        let all = [policy("bu\"rst", 1), policy("daily", 9), policy("hourly", 1)];
        let ask = async || limits.check_all(all.iter().map(|policy| (policy, "ann"))).await;
        assert!(ask().await.unwrap().is_allowed());
        let problem = parsed(&ask().await.unwrap().require().unwrap_err());
        assert_eq!(problem["violated-policies"], json!(["bu\"rst", "hourly"]));
        assert_eq!(problem["status"], 429);

        let never = limits.check(&all[0], "ann").cost(2).await.unwrap_err();
        let problem = parsed(&never);
        assert_eq!(problem["type"], QUOTA_EXCEEDED);
        assert_eq!(problem["violated-policies"], json!(["bu\"rst"]));
    }

    #[tokio::test]
    async fn other_rejections_have_no_type_and_no_internal_details() {
        let limits = Limiter::in_process().clock(&ManualClock::new()).build();
        let listed = Policy::concurrency("secret")
            .max(1)
            .deny_keys(["ann"])
            .build()
            .unwrap();
        let forbidden = limits.acquire_concurrency(&listed, "ann").await.unwrap_err();
        assert_eq!(forbidden.decision().map(Decision::origin), Some(Origin::KeyList));
        let details = crate::responses::details::grpc_status_details(&forbidden, "d");
        assert!(!String::from_utf8_lossy(&details).contains("secret"));
        assert_eq!(
            parsed(&forbidden),
            json!({"type": "about:blank", "title": "Forbidden", "status": 403, "detail": "the request is not permitted"})
        );
        let error = ConfigError::invalid("cost", "-1", "more than secret");
        assert!(!Rejection::Config(error).problem_json().contains("secret"));
    }
}
