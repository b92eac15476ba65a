//! Identifies the caller of the admin part: by a session, a bearer token, or a trusted proxy.
//!
//! Sessions and tokens are random secrets, stored as hashes. A cookie is accepted for a request
//! that changes something only if the browser states that the page is of the same origin.
//! [`SigninLimits`] limits sign-ins and password changes. Tests: below.

mod cookie;
mod limits;
mod origin;
pub mod password;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use limiter_core::Key;

use crate::admin::Admin;
pub use crate::admin::auth::cookie::{COOKIE, LOOPBACK_COOKIE};
use crate::admin::auth::cookie::{session_of, set_cookie};
pub use crate::admin::auth::limits::SigninLimits;
pub use crate::admin::auth::origin::require_same_origin;
use crate::admin::auth::password::PasswordError;
use crate::admin::permissions::{Actor, Role};
use crate::secret::{self, Secret};
use crate::store::{
    Account, GrantedRole, NewAccount, StoreError, StoredToken, TokenIssuer, micros, now_micros,
};

/// The authors of changes that no user makes: the first import, retention and restored databases,
/// changes by other programs, and the link of the first start.
const SYSTEM_AUTHORS: [&str; 4] = ["import", "limiter-server", "outside", "setup"];
/// The lifetime of a session.
const SESSION: Duration = Duration::from_secs(12 * 3_600);
/// The prefix of the secret of a token.
pub const TOKEN_PREFIX: &str = "lim_";
/// The prefix of a scope that permits the use of the admin API.
const ADMIN_SCOPE: &str = "admin:";
/// The spaces around the value of a header and between groups.
const OUTER_SPACES: [char; 2] = [' ', '\t'];
const MICROS_PER_DAY: i64 = 86_400_000_000;
/// The longest name of a user in bytes.
const MAX_NAME_BYTES: usize = 255;

/// The reason for a rejected caller.
#[derive(Debug)]
pub enum AuthError {
    /// No valid session, token or header.
    Unauthenticated,
    /// A page of another origin sent the request.
    CrossOrigin,
    /// Too many attempts; the time until the next one.
    Limited(Duration),
    /// Too many password computations.
    Busy,
    /// The password cannot be used.
    Unsuitable(&'static str),
    /// The database failed.
    Store(StoreError),
}

impl From<StoreError> for AuthError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<PasswordError> for AuthError {
    fn from(error: PasswordError) -> Self {
        match error {
            PasswordError::Unsuitable(reason) => Self::Unsuitable(reason),
            PasswordError::Busy => Self::Busy,
        }
    }
}

/// A started session.
#[derive(Clone, Debug)]
pub struct StartedSession {
    /// The value of the cookie.
    pub secret: Secret,
    /// The name of the user.
    pub user: String,
}

impl StartedSession {
    /// Returns the value of the header `Set-Cookie`.
    #[must_use]
    pub fn cookie(&self, request: &HeaderMap) -> String {
        set_cookie(request, self.secret.reveal(), SESSION)
    }
}

/// Returns the value of the header `Set-Cookie` that removes the session.
#[must_use]
pub fn removed_cookie(request: &HeaderMap) -> String {
    set_cookie(request, "", Duration::ZERO)
}

impl Admin {
    /// Signs a user in by a password.
    ///
    /// # Errors
    ///
    /// [`AuthError::Unauthenticated`] for an unknown name and for a wrong password.
    pub async fn sign_in(
        &self,
        user: &str,
        password: String,
        address: &Key<'static>,
    ) -> Result<StartedSession, AuthError> {
        self.signin_limits().charge_signin(user, address).await?;
        let account = self.store().account(user).await?;
        let account = account.filter(|account| !account.is_disabled);
        let hash = account.as_ref().and_then(|account| account.password.clone());
        let is_verified = self.passwords().verify(password, hash).await?;
        let Some(account) = account.filter(|_| is_verified) else {
            // The name is untrusted, and may be a password that was typed into the wrong field.
            tracing::warn!(?address, "sign-in failed: unknown name or wrong password");
            return Err(AuthError::Unauthenticated);
        };
        self.signin_limits().remember(user, address);
        self.start_session(&account).await
    }

    /// Creates the first administrator by the link of the first run, and signs it in.
    ///
    /// # Errors
    ///
    /// [`AuthError::Unauthenticated`] when the link is not valid any more.
    pub async fn set_up(
        &self,
        link: &str,
        user: &str,
        password: String,
        address: &Key<'static>,
    ) -> Result<StartedSession, AuthError> {
        self.signin_limits().charge_signin("", address).await?;
        let hash = secret::hash(link);
        if !self.store().is_setup_link(&hash, now_micros()).await? {
            return Err(AuthError::Unauthenticated);
        }
        let admin = NewAccount {
            name: user.to_owned(),
            password: Some(self.passwords().hash(password).await?),
            is_admin: true,
        };
        match self.store().complete_setup(&hash, &admin, now_micros()).await {
            Err(StoreError::NotFound) => return Err(AuthError::Unauthenticated),
            result => result?,
        }
        let account = self.store().account(user).await?;
        self.start_session(&account.ok_or(AuthError::Unauthenticated)?)
            .await
    }

    async fn start_session(&self, account: &Account) -> Result<StartedSession, AuthError> {
        let (secret, now) = (Secret::generate(""), now_micros());
        let expires_at = now.saturating_add(micros(SESSION));
        let hash = secret.hash();
        let started = self.store().start_signin(&hash, account, now, expires_at);
        match started.await {
            Err(StoreError::NotFound) => return Err(AuthError::Unauthenticated),
            result => result?,
        }
        Ok(StartedSession {
            secret,
            user: account.name.clone(),
        })
    }

    /// Ends the session of a request.
    ///
    /// # Errors
    ///
    /// [`AuthError::Store`] when the database fails.
    pub async fn sign_out(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        if let Some(session) = session_of(headers) {
            let session = secret::hash(&session);
            self.outage().forget(&session);
            self.store().end_signin(&session).await?;
        }
        Ok(())
    }

    /// Identifies the caller of a request. During an outage of the database, no caller is
    /// identified; [`Admin::remembered`] knows recent sessions.
    ///
    /// # Errors
    ///
    /// [`AuthError::Unauthenticated`] without valid credentials.
    pub async fn identify(&self, parts: &Parts, peer: SocketAddr) -> Result<Actor, AuthError> {
        if self.outage().is_active() {
            return Err(AuthError::Store(StoreError::Unavailable));
        }
        let identified = self.identify_by_database(parts, peer).await;
        match &identified {
            Ok(actor) => {
                if let Some(session) = self.session_id(parts, peer) {
                    self.outage().remember(session, actor, Instant::now());
                }
            }
            Err(AuthError::Store(error)) if error.is_unavailable() => self.outage().begin(self.store()),
            Err(AuthError::Unauthenticated) => {
                if let Some(session) = self.session_id(parts, peer) {
                    self.outage().forget(&session);
                }
            }
            Err(_) => {}
        }
        identified
    }

    /// Returns the user of a session that the database has confirmed in the last 15 minutes, during
    /// an outage of the database.
    pub(super) fn remembered(&self, parts: &Parts, peer: SocketAddr) -> Option<Actor> {
        let is_active = self.outage().is_active();
        let session = self.session_id(parts, peer).filter(|_| is_active)?;
        self.outage().actor(&session, Instant::now())
    }

    /// Returns the identity of the session of a browser; `None` for tokens and without credentials.
    fn session_id(&self, parts: &Parts, peer: SocketAddr) -> Option<String> {
        if token_of(&parts.headers).is_some() {
            return None;
        }
        if let Some(session) = session_of(&parts.headers) {
            return Some(secret::hash(&session));
        }
        let (user, groups) = self.proxy_user(&parts.headers, peer)?;
        Some(secret::hash(&format!("proxy\n{user}\n{}", groups.join("\n"))))
    }

    async fn identify_by_database(&self, parts: &Parts, peer: SocketAddr) -> Result<Actor, AuthError> {
        if let Some(secret) = token_of(&parts.headers) {
            return self.identify_token(secret).await;
        }
        if let Some(session) = session_of(&parts.headers) {
            require_same_origin(&parts.method, &parts.headers)?;
            let signin = self.store().signin(&secret::hash(&session), now_micros()).await?;
            let signin = signin.ok_or(AuthError::Unauthenticated)?;
            return self
                .actor_of(&signin.account, &[])
                .await?
                .ok_or(AuthError::Unauthenticated);
        }
        self.identify_by_proxy(&parts.method, &parts.headers, peer).await
    }

    /// Returns the user and the groups that a trusted proxy states.
    fn proxy_user(&self, headers: &HeaderMap, peer: SocketAddr) -> Option<(String, Vec<String>)> {
        let proxy = self.proxy();
        let user_header = proxy.user_header.as_ref()?;
        if !proxy.peers.contains(&peer.ip().to_canonical()) {
            return None;
        }
        let one = |name: &str| {
            // A client could add a second header beside that of the proxy.
            let mut values = headers.get_all(name).iter();
            let value = values.next().filter(|_| values.next().is_none());
            let text = value.and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
            // Other spaces can be a part of a name.
            text.map(|text| text.trim_matches(OUTER_SPACES))
        };
        let user = one(user_header).filter(|user| is_user_name(user))?;
        let groups = proxy.groups_header.as_deref().and_then(one).unwrap_or_default();
        let groups = groups
            .split(',')
            .map(|group| group.trim_matches(OUTER_SPACES))
            .filter(|group| !group.is_empty());
        Some((user.to_owned(), groups.map(str::to_owned).collect()))
    }

    async fn identify_by_proxy(
        &self,
        method: &Method,
        headers: &HeaderMap,
        peer: SocketAddr,
    ) -> Result<Actor, AuthError> {
        let stated = self.proxy_user(headers, peer);
        let (user, groups) = stated.ok_or(AuthError::Unauthenticated)?;
        require_same_origin(method, headers)?;
        match self.actor_of(&user, &groups).await? {
            Some(actor) => Ok(actor),
            // Users of the proxy need no account, unless theirs is disabled.
            None if self.store().account(&user).await?.is_none() => {
                let roles = self.store().roles_of(&user, &groups).await?;
                Ok(Actor::new(&user, false, &roles))
            }
            None => Err(AuthError::Unauthenticated),
        }
    }

    /// Returns the actor of an enabled account.
    async fn actor_of(&self, user: &str, groups: &[String]) -> Result<Option<Actor>, AuthError> {
        let account = self.store().account(user).await?;
        let Some(account) = account.filter(|account| !account.is_disabled) else {
            return Ok(None);
        };
        let roles = self.store().roles_of(user, groups).await?;
        Ok(Some(Actor {
            issuer: TokenIssuer::Account,
            ..Actor::new(user, account.is_admin, &roles)
        }))
    }

    async fn identify_token(&self, secret: &str) -> Result<Actor, AuthError> {
        let now = now_micros();
        let token = self.store().token_by_hash(&secret::hash(secret)).await?;
        let token = token.filter(|token| token.is_valid_at(now));
        let token = token.ok_or(AuthError::Unauthenticated)?;
        let day = now / MICROS_PER_DAY;
        if token.used_day != Some(day) && !self.store().is_read_only() {
            // A database that only reads, such as a standby, identifies the caller nevertheless.
            if let Err(error) = self.store().mark_token_used(&token.id, day).await {
                tracing::debug!(%error, "the use of a token is not recorded; trying again");
            }
        }
        Ok(actor_of_token(&token))
    }
}

/// Returns the secret of a token of this server. Other credentials are those of a service or of a
/// proxy in front of the server, which forwards them.
fn token_of(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = value.split_once(' ')?;
    let secret = secret.trim();
    let is_token = scheme.eq_ignore_ascii_case("bearer") && secret.starts_with(TOKEN_PREFIX);
    is_token.then_some(secret)
}

/// Returns whether a user can have this name. A name with `:` could be taken for that of a token or
/// of a command, and the history has [`SYSTEM_AUTHORS`] of its own.
#[must_use]
pub fn is_user_name(name: &str) -> bool {
    is_plain_name(name) && !SYSTEM_AUTHORS.contains(&name)
}

/// Returns whether a name has 1 to 255 bytes, no `:`, no control characters and no outer spaces.
pub(crate) fn is_plain_name(name: &str) -> bool {
    is_plain_text(name) && !name.contains(':')
}

/// Returns whether a group of a proxy can have this name: commas separate the groups of the header.
pub(crate) fn is_group_name(name: &str) -> bool {
    is_plain_text(name) && !name.contains(',')
}

/// Returns whether a text has 1 to 255 bytes, no control characters and no outer spaces.
fn is_plain_text(text: &str) -> bool {
    let is_plain = !text.chars().any(char::is_control) && text.trim() == text;
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && is_plain
}

/// Returns the actor of a token: its scopes `admin:<role>` and `admin:<role>:<app>` in its
/// namespace, on behalf of its creator.
fn actor_of_token(token: &StoredToken) -> Actor {
    let scopes = token.scopes.split_whitespace();
    let roles: Vec<GrantedRole> = scopes
        .filter_map(parse_admin_scope)
        .map(|(role, app)| GrantedRole {
            namespace: token.namespace.clone(),
            app: app.to_owned(),
            role: role.name().to_owned(),
        })
        .collect();
    Actor {
        user: token.created_by.clone(),
        issuer: TokenIssuer::Token(token.id.clone()),
        ..Actor::new(format!("token:{}", token.label), false, &roles)
    }
}

/// Returns the role and app of a scope `admin:<role>` or `admin:<role>:<app>`.
#[must_use]
pub fn parse_admin_scope(scope: &str) -> Option<(Role, &str)> {
    let scope = scope.strip_prefix(ADMIN_SCOPE)?;
    let (role, app) = scope
        .split_once(':')
        .unwrap_or((scope, crate::admin::permissions::ALL_APPS));
    Some((Role::parse(role)?, app)).filter(|(_, app)| !app.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_has_no_name_of_another_author() {
        for name in [
            "import",
            "limiter-server",
            "outside",
            "setup",
            "token:ci",
            " ann",
            "",
        ] {
            assert!(!is_user_name(name), "{name:?}");
        }
        assert!(is_user_name("ann@example.org") && is_plain_name("import"));
    }

    #[test]
    fn scopes_of_tokens_name_role_and_app() {
        assert_eq!(parse_admin_scope("admin:viewer"), Some((Role::Viewer, "*")));
        assert_eq!(
            parse_admin_scope("admin:owner:checkout"),
            Some((Role::Owner, "checkout"))
        );
        for scope in ["check", "admin:", "admin:root", "admin:owner:"] {
            assert_eq!(parse_admin_scope(scope), None, "{scope}");
        }
    }
}
