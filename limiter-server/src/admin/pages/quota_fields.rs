//! The quotas of keys in the text of a policy. Pure.

use toml::{Table, Value};

use crate::admin::pages::policy_fields::{PolicyFields, shown};

/// The quotas of keys in the text of a policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuotaFields;

impl QuotaFields {
    /// Returns the quotas of a text.
    pub(super) fn all(text: &str) -> Vec<(String, PolicyFields, String)> {
        let document = text.parse::<Table>().unwrap_or_default();
        let quotas = document.get("override").and_then(Value::as_array);
        let quotas = quotas.into_iter().flatten().filter_map(Value::as_table);
        quotas
            .map(|quota| {
                let until = quota.get("until").map(shown).unwrap_or_default();
                (identity(quota), PolicyFields::of_table(quota), until)
            })
            .collect()
    }

    /// Returns the text without the quota of this key.
    pub(super) fn removed_from(text: &str, key: &str) -> Result<String, String> {
        without_quota(text, key).map(|document| document.to_string())
    }
}

/// Returns the document without a quota. An array without tables is not written.
fn without_quota(text: &str, key: &str) -> Result<Table, String> {
    let mut document = text.parse::<Table>().map_err(|error| error.to_string())?;
    let mut is_empty = false;
    if let Some(quotas) = document.get_mut("override").and_then(Value::as_array_mut) {
        quotas.retain(|quota| quota.as_table().is_none_or(|quota| identity(quota) != key));
        is_empty = quotas.is_empty();
    }
    if is_empty {
        document.remove("override");
    }
    Ok(document)
}

/// Returns the key of a quota as text, with its group.
fn identity(quota: &Table) -> String {
    let names = ["key", "escaped_key", "group", "escaped_group"];
    let parts = names.iter().filter_map(|name| quota.get(*name)).map(shown);
    parts.collect::<Vec<_>>().join(" in ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_text::PolicyText;

    const BUCKET: &str = "[policy.'a b']\nalgorithm = 'token_bucket'\ncapacity = 20\nrate = '100/min'\n";

    #[test]
    fn quotas_are_listed_and_removed() {
        let quota = |key: &str, rate: u32| {
            format!("[[override]]\npolicy = 'a b'\n{key}\ncapacity = 5\nrate = '{rate}/s'\n")
        };
        let text = format!(
            "{BUCKET}{}{}",
            quota("key = 'acme'", 5),
            quota("key = 'acme'\ngroup = 'eu'", 6)
        );
        let all = QuotaFields::all(&text);
        let requests: Vec<_> = all
            .iter()
            .map(|(key, numbers, _)| (&**key, &*numbers.requests))
            .collect();
        assert_eq!(requests, [("acme", "5"), ("acme in eu", "6")]);
        let text = QuotaFields::removed_from(&text, "acme").unwrap();
        assert_eq!(QuotaFields::all(&text).len(), 1);
        let text = QuotaFields::removed_from(&text, "acme in eu").unwrap();
        assert_eq!(PolicyText::parse("a b", &text).unwrap().overrides().len(), 0);
    }
}
