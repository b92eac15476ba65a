//! Changes that tests save to a database without a server.

use limiter_server::store::{Author, DocumentKind, Origin, SaveRequest};

/// The author of a change by the API.
pub(crate) fn author(name: &str, at: i64) -> Author {
    Author {
        name: name.to_owned(),
        origin: Origin::Api,
        reason: None,
        at,
    }
}

/// The change of a policy of the namespace `prod`.
pub(crate) fn policy_change(name: &str, expected: i64, body: String) -> SaveRequest {
    SaveRequest {
        namespace: "prod".to_owned(),
        kind: DocumentKind::Policy,
        name: name.to_owned(),
        expected,
        body,
        is_deletion: false,
        apps: None,
        note: None,
        managed_by: "ui".to_owned(),
    }
}
