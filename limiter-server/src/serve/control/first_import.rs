//! The import of a policy file into an empty database.

use std::path::Path;

use crate::overlay_text;
use crate::policy_text::{PolicyText, rules_to_toml};
use crate::serve::policies;
use crate::store::{
    Author, DocumentKind, OVERLAYS, Origin, RULES, SaveFailure, SaveRequest, Store, StoreError, now_micros,
};

/// Fills an empty database with the policies of a file.
pub(super) async fn import_file(store: &Store, namespace: &str, path: &Path) -> Result<(), String> {
    let documents = store
        .documents(namespace)
        .await
        .map_err(|error| error.to_string())?;
    if !documents.is_empty() {
        tracing::info!(path = %path.display(), "the database has policies; the policy file is not imported");
        return Ok(());
    }
    let registry = policies::read(path)?;
    let author = Author {
        name: "import".to_owned(),
        origin: Origin::Command,
        reason: Some(format!("imported {}", path.display())),
        at: now_micros(),
    };
    let mut requests = Vec::new();
    for name in registry.names() {
        let text = PolicyText::of(&registry, &name)
            .ok_or_else(|| format!("the name of policy `{name}` is too long for the database"))?;
        requests.push((DocumentKind::Policy, name, text.to_toml(), text.apps()));
    }
    let rules = registry.rules();
    if !rules.is_empty() {
        let text = rules_to_toml(&rules).map_err(|error| error.to_string())?;
        requests.push((DocumentKind::Rules, RULES.to_owned(), text, None));
    }
    if overlay_text::is_in(&registry) {
        let text = overlay_text::of(&registry).map_err(|error| error.to_string())?;
        requests.push((DocumentKind::Overlays, OVERLAYS.to_owned(), text, None));
    }
    let requests = requests.into_iter().map(|(kind, name, body, apps)| SaveRequest {
        namespace: namespace.to_owned(),
        kind,
        name,
        expected: 0,
        body,
        is_deletion: false,
        apps,
        note: None,
        managed_by: crate::admin::edit::MANAGED_BY_UI.to_owned(),
    });
    let requests: Vec<SaveRequest> = requests.collect();
    match store.save_all(&requests, &author).await {
        Ok(_) => Ok(()),
        Err(failures) => {
            // Another node imports the same file.
            let is_other = |of: &SaveFailure| matches!(of.error, StoreError::Conflict { .. });
            let failure = failures.into_iter().find(|of| !is_other(of));
            failure.map_or(Ok(()), |of| Err(format!("{}: {}", of.name, of.error)))
        }
    }
}
