//! The quotas of keys in the text of a policy. Pure.

use toml::{Table, Value};

use crate::admin::pages::policy_fields::{PolicyFields, shown};

/// The fields of a quota that name the key and its group.
const KEY_FIELDS: [&str; 4] = ["key", "escaped_key", "group", "escaped_group"];

/// A quota of a key in the text of a policy.
#[derive(Debug)]
pub(super) struct QuotaFields {
    /// The identity among the quotas of the policy.
    pub(super) id: String,
    /// The key with its group, as it is shown. Those of two quotas can be equal.
    pub(super) key: String,
    pub(super) numbers: PolicyFields,
    pub(super) until: String,
}

impl QuotaFields {
    /// Returns the quotas of a text.
    pub(super) fn all(text: &str) -> Vec<Self> {
        let document = text.parse::<Table>().unwrap_or_default();
        let quotas = document.get("override").and_then(Value::as_array);
        let quotas = quotas.into_iter().flatten().filter_map(Value::as_table);
        let quotas = quotas.map(|quota| Self {
            id: identity(quota),
            key: shown_key(quota),
            numbers: PolicyFields::of_table(quota),
            until: quota.get("until").map(shown).unwrap_or_default(),
        });
        quotas.collect()
    }

    /// Returns the text without the quota of this identity.
    pub(super) fn removed_from(text: &str, id: &str) -> Result<String, String> {
        without_quota(text, id).map(|document| document.to_string())
    }
}

/// Returns the document without a quota. An array without tables is not written.
fn without_quota(text: &str, id: &str) -> Result<Table, String> {
    let mut document = text.parse::<Table>().map_err(|error| error.to_string())?;
    let mut is_empty = false;
    if let Some(quotas) = document.get_mut("override").and_then(Value::as_array_mut) {
        quotas.retain(|quota| quota.as_table().is_none_or(|quota| identity(quota) != id));
        is_empty = quotas.is_empty();
    }
    if is_empty {
        document.remove("override");
    }
    Ok(document)
}

/// Returns the key of a quota as text, with its group.
fn shown_key(quota: &Table) -> String {
    let parts = KEY_FIELDS.iter().filter_map(|name| quota.get(*name)).map(shown);
    parts.collect::<Vec<_>>().join(" in ")
}

/// Returns the key of a quota and its group with the names of their fields.
fn identity(quota: &Table) -> String {
    let fields = KEY_FIELDS
        .iter()
        .filter_map(|name| Some((*name, shown(quota.get(*name)?))));
    serde_json::json!(fields.collect::<Vec<_>>()).to_string()
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
        let requests: Vec<_> = all.iter().map(|of| (&*of.key, &*of.numbers.requests)).collect();
        assert_eq!(requests, [("acme", "5"), ("acme in eu", "6")]);
        let text = QuotaFields::removed_from(&text, &all[0].id).unwrap();
        assert_eq!(QuotaFields::all(&text).len(), 1);
        let text = QuotaFields::removed_from(&text, &all[1].id).unwrap();
        assert_eq!(PolicyText::parse("a b", &text).unwrap().overrides().len(), 0);
    }
}
