//! The form of the editor of a policy, as the browser sends it.

use serde::Deserialize;

use crate::admin::pages::edit_tabs::{EditTab, text_of_fields};
use crate::admin::pages::key_fields::KeyFields;
use crate::admin::pages::policy_fields::PolicyFields;

/// The form of the editor. The text is present in the form of the text, and in that of the save.
#[derive(Debug, Deserialize)]
pub(super) struct EditForm {
    /// The name of a new policy.
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) revision: i64,
    pub(super) text: Option<String>,
    inheritance: Option<String>,
    /// The text whose policy the form shows, if it is not the saved one.
    pub(super) base: Option<String>,
    /// The tab that the button of the form opens; `None` for a preview.
    #[serde(rename = "as")]
    pub(super) tab: Option<EditTab>,
    /// A key whose state after the change is shown.
    key: Option<String>,
    pub(super) reason: Option<String>,
    #[serde(flatten)]
    pub(super) fields: PolicyFields,
    /// The fields of the parts of that key, if the policy declares them.
    #[serde(flatten)]
    key_fields: KeyFields,
}

impl EditForm {
    /// Returns the treatment of the usage of keys.
    pub(super) fn inheritance(&self) -> &str {
        self.inheritance.as_deref().unwrap_or("as_is")
    }

    /// Returns the entered key; the page shows its state after the change. Empty without one.
    pub(super) fn entered_key(&self) -> String {
        let key = self.key_fields.text();
        let entered = self.key.as_deref().unwrap_or_default().trim();
        key.unwrap_or_else(|| entered.to_owned())
    }

    /// Returns the text of the policy: that of the field, or that of the form in place of the saved
    /// text.
    pub(super) fn policy_text(&self, name: &str, saved: &str) -> Result<String, String> {
        match &self.text {
            Some(text) => Ok(text.clone()),
            None => text_of_fields(&self.fields, name, self.base.as_deref().unwrap_or(saved)),
        }
    }
}
