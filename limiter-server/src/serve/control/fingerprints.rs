//! The fingerprints of keys of the namespaces that this process manages.

use std::collections::BTreeMap;

use tokio::task::JoinSet;

use crate::gateway::Gateway;
use crate::publish::{Publisher, key_secret};
use crate::secret::fingerprint::KeyFingerprints;
use crate::settings::Settings;

/// Returns the fingerprints of each namespace; those of the gateway's namespace are its own.
pub(super) fn fingerprints_of(
    gateway: &Gateway,
    publishers: &[Publisher],
    settings: &Settings,
) -> BTreeMap<String, KeyFingerprints> {
    let each = publishers.iter().map(|publisher| {
        let namespace = publisher.namespace();
        let fingerprints = match namespace == gateway.namespace() {
            true => gateway.fingerprints().clone(),
            false => KeyFingerprints::new(settings.explanation.key_secret.as_deref()),
        };
        (namespace.to_owned(), fingerprints)
    });
    each.collect()
}

/// Shares the secrets of the namespaces with other nodes until the task is dropped.
pub(super) async fn share_fingerprints(
    publishers: &[Publisher],
    fingerprints: &BTreeMap<String, KeyFingerprints>,
) {
    let shared = publishers.iter().filter_map(|publisher| {
        let shared = fingerprints.get(publisher.namespace())?.clone();
        (!shared.is_configured()).then(|| key_secret::run(publisher.clone(), shared))
    });
    let mut running: JoinSet<()> = shared.collect();
    while running.join_next().await.is_some() {}
}
