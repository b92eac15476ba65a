//! Issues tokens of a namespace: for the API, and for commands on the database.
//!
//! A token has a name, scopes and an end. A rotation issues a token with equal scopes and lifetime,
//! and ends the previous one after an overlap.
//!
//! Invariant: a scope of the admin API never exceeds the roles of the user that issues or rotates
//! the token. Tests: `tests/admin_api.rs`, `tests/issued_tokens.rs`, `tests/policy_command.rs`.

use crate::access::Scope;
use crate::admin::auth::{TOKEN_PREFIX, is_group_name, is_plain_name, is_user_name, parse_admin_scope};
use crate::admin::permissions::{Actor, may_grant};
use crate::secret::{Secret, random_id};
use crate::store::{NewStoredToken, Store, StoreError, StoredToken, now_micros};

/// The longest name of a token.
const MAX_NAME_BYTES: usize = 255 - "token:".len();
const EXPECTED_NAME: &str =
    "expected a name of 1 to 255 bytes without `:`, control characters and outer spaces";
const EXPECTED_GROUP: &str = "expected a group of 1 to 255 bytes without comma, control characters and outer spaces, other than \
                              `.` and `..`";
const MICROS_PER_DAY: i64 = 86_400_000_000;
/// The default and the longest lifetime in days.
const LIFETIME_DAYS: (i64, i64) = (90, 3_650);
/// The default and the longest time for which a rotated token remains valid, in seconds.
const OVERLAP_SECONDS: (i64, i64) = (86_400, 30 * 86_400);

/// A token that is requested.
#[derive(Clone, Debug)]
pub(crate) struct TokenRequest {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Scopes such as `check:*`, `refund:policy=search`, `admin:viewer` or `admin:owner:checkout`.
    pub(crate) scopes: Vec<String>,
    /// The lifetime. Default: 90 days.
    pub(crate) days: Option<i64>,
}

/// A new token with its secret, which is not stored.
#[derive(Debug)]
pub(crate) struct IssuedToken {
    pub(crate) id: String,
    pub(crate) secret: Secret,
    pub(crate) expires_at: i64,
    /// The end of the token that it replaces.
    pub(crate) previous_ends_at: Option<i64>,
}

/// The reason for a rejected token request.
#[derive(Debug)]
pub(crate) enum TokenFailure {
    /// The request is malformed.
    Malformed(String),
    /// The name cannot be stored.
    InvalidName(&'static str),
    /// A scope exceeds the roles of the actor.
    Forbidden(String),
    /// There is no valid token to replace.
    NotFound,
    Store(StoreError),
}

impl From<StoreError> for TokenFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Returns whether a name is a segment of a relative path. Browsers remove such a segment from the
/// address of a page, also in its encoded form.
pub(crate) fn is_relative_segment(name: &str) -> bool {
    matches!(name, "." | "..")
}

/// Fails for a name that cannot be stored, or could be taken for another author.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    match (is_user_name(name), is_plain_name(name)) {
        (true, _) if is_relative_segment(name) => {
            Err("the name is `.` or `..`, which browsers remove from addresses: choose another name")
        }
        (true, _) => Ok(()),
        (false, true) => {
            Err("the name is that of an author of changes that the server makes: choose another name")
        }
        (false, false) => Err(EXPECTED_NAME),
    }
}

/// Fails for a name that a group of a proxy cannot have.
pub(crate) fn check_group_name(name: &str) -> Result<(), &'static str> {
    match is_group_name(name) && !is_relative_segment(name) {
        true => Ok(()),
        false => Err(EXPECTED_GROUP),
    }
}

/// Fails for a name that is not suitable for a token. Its changes have the author `token:NAME`,
/// which has at most 255 bytes in the database.
fn check_token_name(name: &str) -> Result<(), &'static str> {
    if !is_plain_name(name) {
        return Err(EXPECTED_NAME);
    }
    match name.len() <= MAX_NAME_BYTES {
        true => Ok(()),
        false => Err("expected a name of a token of at most 249 bytes"),
    }
}

/// Issues a token.
pub(crate) async fn issue(
    store: &Store,
    actor: &Actor,
    request: TokenRequest,
) -> Result<IssuedToken, TokenFailure> {
    check_token_name(&request.name).map_err(TokenFailure::InvalidName)?;
    require_scopes(actor, &request.namespace, &request.scopes)?;
    let days = request.days.unwrap_or(LIFETIME_DAYS.0);
    if !(1..=LIFETIME_DAYS.1).contains(&days) {
        let reason = format!("expected a lifetime from 1 to {} days", LIFETIME_DAYS.1);
        return Err(TokenFailure::Malformed(reason));
    }
    let (secret, now) = (Secret::generate(TOKEN_PREFIX), now_micros());
    let new = NewStoredToken {
        id: random_id(),
        hash: secret.hash(),
        label: request.name,
        namespace: request.namespace,
        scopes: request.scopes.join(" "),
        created_by: actor.user.clone(),
        issued_by: actor.name.clone(),
        created_at: now,
        expires_at: now.saturating_add(days * MICROS_PER_DAY),
    };
    store.issue_token(&new, None, &actor.issuer).await?;
    Ok(IssuedToken {
        id: new.id,
        secret,
        expires_at: new.expires_at,
        previous_ends_at: None,
    })
}

/// Issues a token with the same scopes, and ends the previous one after an overlap.
pub(crate) async fn rotate(
    store: &Store,
    actor: &Actor,
    (namespace, id): (&str, &str),
    overlap_seconds: Option<i64>,
) -> Result<IssuedToken, TokenFailure> {
    let now = now_micros();
    let old = store.token(namespace, id).await?;
    let old = old.filter(|token| token.is_valid_at(now));
    let old = old.ok_or(TokenFailure::NotFound)?;
    let scopes: Vec<String> = old.scopes.split_whitespace().map(str::to_owned).collect();
    require_scopes(actor, namespace, &scopes)?;
    let overlap = overlap_seconds.unwrap_or(OVERLAP_SECONDS.0);
    let overlap = overlap.clamp(0, OVERLAP_SECONDS.1);
    let ends_at = now.saturating_add(overlap * 1_000_000).min(old.expires_at);
    // An earlier rotation may have ended it sooner.
    let ends_at = old.revoked_at.map_or(ends_at, |end| end.min(ends_at));
    let secret = Secret::generate(TOKEN_PREFIX);
    let new = NewStoredToken {
        id: random_id(),
        hash: secret.hash(),
        label: old.label,
        namespace: namespace.to_owned(),
        scopes: old.scopes,
        created_by: actor.user.clone(),
        issued_by: actor.name.clone(),
        created_at: now,
        expires_at: now.saturating_add(old.expires_at - old.created_at),
    };
    store
        .issue_token(&new, Some((id, ends_at)), &actor.issuer)
        .await?;
    Ok(IssuedToken {
        id: new.id,
        secret,
        expires_at: new.expires_at,
        previous_ends_at: Some(ends_at),
    })
}

/// Fails for scopes that are malformed or exceed the roles of the actor.
fn require_scopes(actor: &Actor, namespace: &str, scopes: &[String]) -> Result<(), TokenFailure> {
    let malformed = |reason: String| Err(TokenFailure::Malformed(reason));
    if scopes.is_empty() {
        return malformed("expected at least one scope".to_owned());
    }
    for scope in scopes {
        let is_plain = !scope.is_empty() && !scope.chars().any(|of| of.is_whitespace() || of.is_control());
        if !is_plain {
            return malformed("expected scopes without spaces".to_owned());
        }
        if !scope.starts_with("admin:") {
            scope.parse::<Scope>().map_err(TokenFailure::Malformed)?;
            continue;
        }
        let Some((role, app)) = parse_admin_scope(scope) else {
            return malformed(format!(
                "scope `{scope}` is unknown, expected admin:<role> or admin:<role>:<app>"
            ));
        };
        if !may_grant(actor, role, namespace, app) {
            let reason = format!("scope `{scope}` exceeds your own roles");
            return Err(TokenFailure::Forbidden(reason));
        }
    }
    Ok(())
}

/// Returns the state of a token in one word.
pub(crate) fn state(token: &StoredToken, now: i64) -> &'static str {
    match token {
        of if of.revoked_at.is_some_and(|at| at <= now) => "revoked",
        of if of.expires_at <= now => "expired",
        of if of.is_suspended => "suspended",
        _ => "valid",
    }
}
