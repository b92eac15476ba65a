//! The fields of the form of a policy, and the text that they stand for. Pure.
//!
//! The form states a policy as its sentence does: requests per time, with bursts. The text
//! keeps every setting that the form does not show. Tests: below.

use limiter_core::Amount;
use serde::Deserialize;
use serde_json::Map;
use toml::{Table, Value};

use crate::admin::numbers::grouped;
use crate::admin::pages::failure::PageFailure;

/// The fields of the form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct PolicyFields {
    pub(super) algorithm: String,
    /// Permits of the rate, of the window, or at once.
    pub(super) requests: String,
    /// A period such as `1m`.
    pub(super) per: String,
    /// The capacity of a bucket or funnel.
    pub(super) burst: String,
    pub(super) enforcement: String,
    pub(super) on_store_failure: String,
    /// Names separated by commas; empty for all apps.
    pub(super) apps: String,
    /// The names of the parts of keys, separated by commas; empty if they are not declared.
    pub(super) key_parts: String,
    pub(super) note: String,
}

/// The algorithms: name in a text, name for users.
pub(super) const ALGORITHMS: [(&str, &str); 6] = [
    ("token_bucket", "Token bucket: a rate with bursts"),
    ("funnel", "Funnel: a rate, drained evenly"),
    ("sliding_window", "Sliding window: exact in any window"),
    ("counter_window", "Counter window: approximate, least memory"),
    ("fixed_window", "Fixed window: in each period"),
    ("concurrency", "Concurrency: requests in progress"),
];

impl PolicyFields {
    /// Creates the fields of a new policy.
    pub(super) fn new(app: &str) -> Self {
        Self {
            algorithm: "token_bucket".to_owned(),
            requests: "100".to_owned(),
            per: "1m".to_owned(),
            burst: "20".to_owned(),
            enforcement: "shadow".to_owned(),
            apps: app.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the text on which the form of a new policy is based: the app, because the field of
    /// the apps cannot show a name with a comma.
    pub(super) fn base(name: &str, app: Option<&str>) -> String {
        let Some(app) = app.filter(|app| !app.is_empty()) else {
            return String::new();
        };
        let apps = Value::Array(vec![app.into()]);
        let policy = Table::from_iter([("apps".to_owned(), apps)]);
        let policies = Table::from_iter([(name.to_owned(), Value::Table(policy))]);
        Table::from_iter([("policy".to_owned(), Value::Table(policies))]).to_string()
    }

    /// Returns the fields of the policy of this name in a text.
    pub(super) fn of(name: &str, text: &str) -> Self {
        let table = text.parse::<Table>().unwrap_or_default();
        let policy = table.get("policy").and_then(|policies| policies.get(name));
        Self::of_table(policy.and_then(Value::as_table).unwrap_or(&Table::new()))
    }

    /// Returns whether calls are denied, which is the default.
    pub(super) fn is_enforced(&self) -> bool {
        matches!(self.enforcement.as_str(), "" | "enforce")
    }

    /// Returns the fields of the table of a policy or of a quota.
    pub(super) fn of_table(policy: &Table) -> Self {
        let text = |name: &str| policy.get(name).map(shown).unwrap_or_default();
        let rate = text("rate");
        let (of_rate, period) = rate.split_once('/').unwrap_or((&rate, "s"));
        let is_rate = !rate.is_empty();
        Self {
            algorithm: text("algorithm"),
            requests: match is_rate {
                true => of_rate.to_owned(),
                false => text("limit") + &text("max"),
            },
            per: match is_rate {
                true => counted(period),
                false => text("window"),
            },
            burst: text("capacity"),
            enforcement: text("enforcement"),
            on_store_failure: text("on_store_failure"),
            apps: list_of(policy, "apps"),
            key_parts: list_of(policy, "key"),
            note: text("note"),
        }
    }

    /// Returns the text of a policy: that of `base`, which may be empty, with the values of the
    /// fields.
    pub(super) fn text(&self, name: &str, base: &str) -> Result<String, String> {
        let mut document = base.parse::<Table>().map_err(|error| error.to_string())?;
        let policies = document
            .entry("policy")
            .or_insert_with(|| Value::Table(Table::new()));
        let policies = policies.as_table_mut().ok_or("expected a table [policy]")?;
        let policy = policies.entry(name).or_insert_with(|| Value::Table(Table::new()));
        let policy = policy.as_table_mut().ok_or("expected a table [policy.name]")?;
        self.write_numbers(policy)?;
        for (field, value) in [
            ("enforcement", &self.enforcement),
            ("on_store_failure", &self.on_store_failure),
            ("note", &self.note),
        ] {
            match value.trim() {
                "" => policy.remove(field),
                value => policy.insert(field.to_owned(), value.into()),
            };
        }
        for (field, names) in [("apps", &self.apps), ("key", &self.key_parts)] {
            // A name can contain a comma, so an unchanged field keeps the list.
            if *names == list_of(policy, field) {
                continue;
            }
            let names: Vec<Value> = names_of(names).map(Value::from).collect();
            match names.is_empty() {
                true => policy.remove(field),
                false => policy.insert(field.to_owned(), Value::Array(names)),
            };
        }
        Ok(document.to_string())
    }

    /// Returns the names of the parts of keys.
    pub(super) fn key_part_names(&self) -> Vec<String> {
        names_of(&self.key_parts).map(str::to_owned).collect()
    }

    /// Returns the parts of keys as the subject of a sentence.
    pub(super) fn subject(&self) -> String {
        match self.key_part_names() {
            names if names.is_empty() => "key".to_owned(),
            names => names.join(" and "),
        }
    }

    /// Writes algorithm and numbers, and removes numbers of another algorithm.
    fn write_numbers(&self, policy: &mut Table) -> Result<(), String> {
        let algorithm = self.algorithm.trim();
        let is_same = policy.get("algorithm").and_then(Value::as_str) == Some(algorithm);
        for name in ["capacity", "rate", "limit", "window", "max"] {
            policy.remove(name);
        }
        if !is_same {
            for name in ["align", "paced", "scaled", "lease"] {
                policy.remove(name);
            }
        }
        policy.insert("algorithm".to_owned(), algorithm.into());
        for (name, value) in self.numbers()? {
            policy.insert(name.to_owned(), value);
        }
        Ok(())
    }

    /// `200 per 1m, bursts of 20`.
    pub(super) fn short_sentence(&self) -> String {
        let requests = grouped(&self.requests);
        match (self.per.as_str(), self.burst.as_str()) {
            ("", _) => format!("{requests} in progress"),
            (per, "") => format!("{requests} in {per}"),
            (per, burst) => format!("{requests} per {per}, bursts of {}", grouped(burst)),
        }
    }

    /// Returns the numbers as fields of the API.
    pub(super) fn numbers_json(&self) -> Result<Map<String, serde_json::Value>, PageFailure> {
        let numbers = self.numbers().map_err(PageFailure::unprocessable)?.into_iter();
        let fields = numbers.map(|(name, value)| {
            let value = match value {
                Value::Integer(number) => number.into(),
                Value::Float(number) => number.into(),
                value => shown(&value).into(),
            };
            (name.to_owned(), value)
        });
        Ok(fields.collect())
    }

    /// Returns the fields with twice the permits, which a form offers for a raise.
    pub(super) fn doubled(&self) -> Self {
        let twice = |text: &str| {
            let amount = Amount::try_from(text).ok();
            let thousandths = amount.and_then(|of| u64::try_from(of.as_thousandths()).ok());
            match thousandths.and_then(|of| of.checked_mul(2)) {
                Some(twice) => Amount::from_thousandths(twice).to_string(),
                None => text.to_owned(),
            }
        };
        Self {
            requests: twice(&self.requests),
            burst: twice(&self.burst),
            ..self.clone()
        }
    }

    fn numbers(&self) -> Result<Vec<(&'static str, Value)>, String> {
        let requests = || number("Requests", &self.requests);
        let period = match self.per.trim() {
            "" => return self.numbers_without_period(),
            period => period,
        };
        Ok(match self.algorithm.trim() {
            "token_bucket" | "funnel" => {
                let burst = match self.burst.trim() {
                    "" => &self.requests,
                    _ => &self.burst,
                };
                requests()?;
                let rate = format!("{}/{period}", self.requests.trim());
                vec![("capacity", number("Bursts", burst)?), ("rate", rate.into())]
            }
            "concurrency" => vec![("max", requests()?)],
            _ => vec![("limit", requests()?), ("window", period.into())],
        })
    }

    fn numbers_without_period(&self) -> Result<Vec<(&'static str, Value)>, String> {
        match self.algorithm.trim() {
            "concurrency" => Ok(vec![("max", number("Requests", &self.requests)?)]),
            _ => Err("a period is missing, such as 1m".to_owned()),
        }
    }
}

/// Returns the name of the only policy in a text; `None` if there is none, or several.
pub(super) fn only_name(text: &str) -> Option<String> {
    let document = text.parse::<Table>().ok()?;
    let mut names = document.get("policy")?.as_table()?.keys();
    names.next().filter(|_| names.len() == 0).cloned()
}

/// Returns a value as the form shows it.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// Returns the names of a list in a policy as the form shows them.
fn list_of(policy: &Table, field: &str) -> String {
    let names = policy.get(field).and_then(Value::as_array);
    let names: Vec<&str> = names.into_iter().flatten().filter_map(Value::as_str).collect();
    names.join(", ")
}

/// Returns the names of a list that is separated by commas.
fn names_of(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// `min` as `1m`, `30s` as it is.
fn counted(period: &str) -> String {
    let period = match period.trim() {
        "min" => "m",
        period => period,
    };
    match period.starts_with(|first: char| first.is_ascii_digit()) {
        true => period.to_owned(),
        false => format!("1{period}"),
    }
}

fn number(field: &str, text: &str) -> Result<Value, String> {
    let text = text.trim();
    let whole = text.parse::<i64>().map(Value::Integer);
    let number = whole.or_else(|_| text.parse::<f64>().map(Value::Float));
    number.map_err(|_| format!("{field}: expected a number, got `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_text::PolicyText;

    const BUCKET: &str = "[policy.'a b']\nalgorithm = 'token_bucket'\ncapacity = 20\nrate = '100/min'\n\
                          deadline = '5ms'\napps = ['shop', 'web']\nkey = ['tenant', 'user']\n";

    #[test]
    fn form_shows_the_values_of_the_text() {
        let fields = PolicyFields::of("a b", BUCKET);
        assert_eq!(
            (&*fields.requests, &*fields.per, &*fields.burst, &*fields.apps),
            ("100", "1m", "20", "shop, web")
        );
        assert_eq!(fields.key_part_names(), ["tenant", "user"]);
        let window = "[policy.w]\nalgorithm = 'sliding_window'\nlimit = 5\nwindow = '90s'\n";
        let fields = PolicyFields::of("w", window);
        assert_eq!(
            (&*fields.requests, &*fields.per, &*fields.burst),
            ("5", "90s", "")
        );
    }

    #[test]
    fn unchanged_form_keeps_the_policy() {
        let before = PolicyText::parse("a b", BUCKET).unwrap();
        let text = PolicyFields::of("a b", BUCKET).text("a b", BUCKET).unwrap();
        let after = PolicyText::parse("a b", &text).unwrap();
        assert_eq!(before.content(), after.content());
    }

    #[test]
    fn unchanged_form_keeps_names_with_commas() {
        let text = BUCKET.replace("'shop', 'web'", "'shop, web'");
        let fields = PolicyFields {
            requests: "7".to_owned(),
            ..PolicyFields::of("a b", &text)
        };
        let saved = PolicyText::parse("a b", &fields.text("a b", &text).unwrap()).unwrap();
        assert_eq!(saved.apps(), Some(vec!["shop, web".to_owned()]));
        let fields = PolicyFields {
            apps: "shop, mail".to_owned(),
            ..fields
        };
        let saved = PolicyText::parse("a b", &fields.text("a b", &text).unwrap()).unwrap();
        assert_eq!(saved.apps(), Some(vec!["mail".to_owned(), "shop".to_owned()]));
    }

    #[test]
    fn each_algorithm_has_a_valid_text() {
        for (algorithm, _) in ALGORITHMS {
            let fields = PolicyFields {
                algorithm: algorithm.to_owned(),
                ..PolicyFields::new("shop")
            };
            for base in ["", BUCKET] {
                let text = fields.text("a b", base).unwrap();
                let policy =
                    PolicyText::parse("a b", &text).unwrap_or_else(|error| panic!("{text}\n{error}"));
                assert_eq!(policy.entry().policy().algorithm_name(), algorithm);
            }
        }
    }

    #[test]
    fn numbers_are_fields_of_the_api() {
        let fields = PolicyFields::of("a b", BUCKET).doubled();
        let numbers = fields.numbers_json().unwrap();
        assert_eq!(
            serde_json::Value::Object(numbers),
            serde_json::json!({ "capacity": 40, "rate": "200/1m" })
        );
    }

    #[test]
    fn raise_doubles_all_numbers() {
        for (number, expected) in [("7", "14"), ("2.5", "5"), ("0.125", "0.25"), ("many", "many")] {
            let fields = PolicyFields {
                burst: number.to_owned(),
                ..PolicyFields::default()
            };
            assert_eq!(fields.doubled().burst, expected);
        }
    }

    #[test]
    fn only_policy_of_a_text_has_a_name() {
        assert_eq!(only_name(BUCKET).as_deref(), Some("a b"));
        for other in ["", "[policy.a]\n[policy.b]\n", "[policy", "policy = 1\n"] {
            assert_eq!(only_name(other), None, "{other}");
        }
    }

    #[test]
    fn wrong_numbers_are_named() {
        let fields = PolicyFields {
            requests: "many".to_owned(),
            ..PolicyFields::new("shop")
        };
        assert_eq!(
            fields.text("a", ""),
            Err("Requests: expected a number, got `many`".to_owned())
        );
    }
}
