//! The look of namespaces on the pages.

use serde::{Deserialize, Serialize};

use crate::settings::NAMESPACE_COLOURS;
use crate::store::sql::binds;
use crate::store::{Store, StoreError, alerts, audit};

/// The name and the colour of a namespace on the pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceLook {
    /// The name; empty for that of the namespace.
    pub label: String,
    /// The colour.
    pub colour: String,
}

impl NamespaceLook {
    /// The colours.
    pub const COLOURS: [&str; 5] = NAMESPACE_COLOURS;
}

impl Default for NamespaceLook {
    fn default() -> Self {
        Self {
            label: String::new(),
            colour: "grey".to_owned(),
        }
    }
}

/// Returns the name of the setting.
fn setting(namespace: &str) -> String {
    format!("namespace:{namespace}")
}

impl Store {
    /// Returns the look that an administrator chose for a namespace.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn namespace_look(&self, namespace: &str) -> Result<Option<NamespaceLook>, StoreError> {
        let sql = "SELECT content FROM setting WHERE name = ?";
        let row = self.pool.row(sql, binds![setting(namespace)]).await?;
        let text = row.map(|row| row.text(0)).transpose()?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Replaces the look of a namespace.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn set_namespace_look(
        &self,
        namespace: &str,
        look: &NamespaceLook,
        author: &str,
        at: i64,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let content = serde_json::json!(look).to_string();
        let mut transaction = self.pool.begin().await?;
        // Two administrators can choose it at once.
        alerts::lock(&mut transaction).await?;
        let sql = "DELETE FROM setting WHERE name = ?";
        transaction.execute(sql, binds![setting(namespace)]).await?;
        let sql = "INSERT INTO setting (name, content) VALUES (?, ?)";
        transaction
            .execute(sql, binds![setting(namespace), content])
            .await?;
        let entry = audit::NewEntry {
            namespace,
            actor: author,
            action: "namespace.change",
            object: namespace,
            apps: None,
            detail: Some(format!("{} ({})", look.label, look.colour)),
            at,
        };
        audit::insert(&mut transaction, entry).await?;
        transaction.commit().await
    }
}
