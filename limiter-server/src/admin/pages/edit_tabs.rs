//! The tabs of the editor: the same policy as a form and as text. Pure.
//!
//! A tab is a button of the form, so the server receives all fields and answers with the other tab.
//! Settings that the form does not show stay in its hidden field `base`, the text of the last tab.

use serde::Deserialize;
use toml::{Table, Value};

use crate::admin::pages::policy_fields::{PolicyFields, only_name};

/// A tab of the editor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EditTab {
    Form,
    Toml,
}

/// Returns the fields of the policy in a text, which has one policy of this name.
///
/// # Errors
///
/// The reason why the form cannot show the text.
pub(super) fn fields_of_text(name: &str, text: &str) -> Result<PolicyFields, String> {
    text.parse::<Table>().map_err(|error| error.to_string())?;
    match only_name(text) {
        Some(found) if found == name => Ok(PolicyFields::of(name, text)),
        Some(found) => Err(format!("The text has the policy {found} in place of {name}.")),
        None => Err("The text has no [policy.NAME], or several.".to_owned()),
    }
}

/// Returns the text of the form, on the basis of a text whose policy may have another name.
///
/// # Errors
///
/// The field that has no value of its type.
pub(super) fn text_of_fields(fields: &PolicyFields, name: &str, base: &str) -> Result<String, String> {
    fields.text(name, &renamed(base, name).unwrap_or_else(|| base.to_owned()))
}

/// Returns the text with another name of its policy; `None` if the name is the same, or the text
/// does not have one policy.
fn renamed(text: &str, name: &str) -> Option<String> {
    let old = only_name(text).filter(|old| old != name)?;
    let mut document = text.parse::<Table>().ok()?;
    let policies = document.get_mut("policy")?.as_table_mut()?;
    let policy = policies.remove(&old)?;
    policies.insert(name.to_owned(), policy);
    let quotas = document.get_mut("override").and_then(Value::as_array_mut);
    for quota in quotas.into_iter().flatten().filter_map(Value::as_table_mut) {
        if quota.get("policy").and_then(Value::as_str) == Some(&old) {
            quota.insert("policy".to_owned(), name.into());
        }
    }
    Some(document.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[policy.old]\nalgorithm = 'fixed_window'\nlimit = 5\nwindow = '1d'\nalign = '+02:00'\n\
                        [[override]]\npolicy = 'old'\nkey = 'acme'\nlimit = 9\nwindow = '1d'\n";

    #[test]
    fn form_shows_one_policy_of_its_name() {
        assert_eq!(fields_of_text("old", TEXT).unwrap().requests, "5");
        for (name, text) in [
            ("new", TEXT),
            ("old", ""),
            ("old", "[policy.old"),
            ("a", "[policy.a]\n[policy.b]\n"),
        ] {
            assert!(fields_of_text(name, text).is_err(), "{name}: {text}");
        }
    }

    #[test]
    fn settings_beside_the_form_are_kept() {
        let fields = PolicyFields {
            requests: "7".to_owned(),
            ..fields_of_text("old", TEXT).unwrap()
        };
        for name in ["old", "new"] {
            let text = text_of_fields(&fields, name, TEXT).unwrap();
            let expected = TEXT.replace("old", name).replace("limit = 5", "limit = 7");
            let tables = [&text, &expected].map(|of| of.parse::<Table>().unwrap());
            assert_eq!(tables[0], tables[1], "{text}");
        }
        assert!(
            text_of_fields(&fields, "new", "")
                .unwrap()
                .contains("[policy.new]")
        );
    }
}
