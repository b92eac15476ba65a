//! The configured clients, and the function that decides.
//!
//! Tokens are found by a part of the hash of their secret, certificates by their names. A call is
//! decided by the table at the time of the call. Invariant: with a configured client, anonymous
//! clients are refused; without one, they check and peek only. Tests: below, and `tests/access.rs`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use crate::access::{AccessDenial, Action, Scope, Target, Token, TokenHash};

/// The identity of a connection or of a request. Cheap to clone. It grants nothing by itself: the
/// table of the time of each call decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Client {
    /// No credentials.
    #[default]
    Anonymous,
    /// A bearer token.
    Token(TokenHash),
    /// A certificate of a configured authority, by its names: the DNS names and URIs of the subject
    /// alternative name, then the common name.
    Certificate(Arc<[String]>),
}

impl Client {
    /// Returns the client that sent a secret.
    #[must_use]
    pub fn of_secret(secret: &str) -> Self {
        Self::Token(TokenHash::of(secret))
    }
}

/// A configured client that identifies itself by a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CertificateClient {
    /// The name in logs.
    pub name: String,
    /// A DNS name or URI of the certificate, or its common name.
    pub certificate: String,
    /// The permitted actions.
    pub scopes: Vec<Scope>,
}

impl CertificateClient {
    /// Creates a client.
    #[must_use]
    pub const fn new(name: String, certificate: String, scopes: Vec<Scope>) -> Self {
        Self {
            name,
            certificate,
            scopes,
        }
    }
}

/// The configured clients.
#[derive(Clone, Debug, Default)]
pub struct AccessTable {
    tokens: HashMap<u64, Vec<Token>>,
    certificates: HashMap<String, CertificateClient>,
    /// True if anonymous clients are rejected although no client is left.
    had_clients: bool,
    /// True if issued tokens are missing because their source has not confirmed them.
    is_unconfirmed: bool,
}

impl AccessTable {
    /// Creates a table of clients.
    ///
    /// # Errors
    ///
    /// The reason, when two clients have one name, one hash or one certificate, or a client has an
    /// invalid name or no scope.
    pub fn new(tokens: Vec<Token>, clients: Vec<CertificateClient>) -> Result<Self, String> {
        let mut names = std::collections::HashSet::new();
        let mut checked = |name: &str, scopes: &[Scope]| {
            if name.is_empty() || name.len() > 120 || name.chars().any(char::is_control) {
                return Err(format!(
                    "the name `{name:.120}` of a client is invalid, expected 1 to 120 bytes without control characters"
                ));
            }
            if scopes.is_empty() {
                return Err(format!(
                    "the client `{name}` has no scopes, expected at least one"
                ));
            }
            match names.insert(name.to_owned()) {
                true => Ok(()),
                false => Err(format!(
                    "two clients have the name `{name}`, expected different names"
                )),
            }
        };
        let mut table = Self::default();
        for token in tokens {
            checked(&token.name, &token.scopes)?;
            let bucket = table.tokens.entry(token.hash.index()).or_default();
            if let Some(other) = bucket.iter().find(|other| other.hash == token.hash) {
                return Err(format!(
                    "the tokens `{}` and `{}` have one hash",
                    other.name, token.name
                ));
            }
            bucket.push(token);
        }
        for client in clients {
            checked(&client.name, &client.scopes)?;
            let name = client.name.clone();
            if let Some(other) = table.certificates.insert(client.certificate.clone(), client) {
                return Err(format!(
                    "the clients `{}` and `{name}` have one certificate",
                    other.name
                ));
            }
        }
        Ok(table)
    }

    /// Creates the table with further tokens. A configured token of the same secret takes
    /// precedence.
    pub(super) fn with_issued(&self, issued: &[Token]) -> Self {
        let mut table = self.clone();
        for token in issued {
            let bucket = table.tokens.entry(token.hash.index()).or_default();
            if !bucket.iter().any(|other| other.hash == token.hash) {
                bucket.push(token.clone());
            }
        }
        table
    }

    /// Returns the table without the issued tokens, because their source has not confirmed them.
    pub(super) fn unconfirmed(&self) -> Self {
        Self {
            is_unconfirmed: true,
            ..self.clone()
        }
    }

    /// Returns the table, which rejects anonymous clients if an earlier one did.
    pub(super) fn after(mut self, earlier: &Self) -> Self {
        self.had_clients = !earlier.accepts_anonymous();
        self
    }

    /// Returns whether clients without credentials may check and peek: no client is configured, and
    /// none was since the start of the process.
    #[must_use]
    pub fn accepts_anonymous(&self) -> bool {
        self.is_empty() && !self.had_clients
    }

    /// Returns whether no client is configured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.certificates.is_empty()
    }

    /// Returns the number of configured clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.values().map(Vec::len).sum::<usize>() + self.certificates.len()
    }

    /// Returns the time until the first token ends that is valid now; `None` without such a token.
    #[must_use]
    pub fn first_expiry(&self, now: SystemTime) -> Option<Duration> {
        let ends = self.tokens.values().flatten().map(|token| token.expires.time());
        let left = ends.filter_map(|end| end.duration_since(now).ok());
        left.filter(|left| !left.is_zero()).min()
    }

    /// Returns the hashes of the tokens that calls have used since the last call of this method.
    pub(super) fn take_used(&self) -> Vec<TokenHash> {
        let tokens = self.tokens.values().flatten();
        let used = tokens.filter(|token| token.usage.take());
        used.map(|token| token.hash).collect()
    }

    /// Returns the name of a client that is configured and valid. Without configured clients,
    /// anonymous ones are valid.
    ///
    /// # Errors
    ///
    /// The reason why the client is not valid.
    pub fn identify(&self, client: &Client, now: SystemTime) -> Result<&str, AccessDenial> {
        Ok(self.find(client, now)?.map_or("anonymous", |(name, _)| name))
    }

    /// Decides whether a client may take an action on a target.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn may(
        &self,
        client: &Client,
        action: Action,
        target: &Target<'_>,
        now: SystemTime,
    ) -> Result<(), AccessDenial> {
        match self.find(client, now)? {
            None => match action {
                Action::Check | Action::Peek => Ok(()),
                action => Err(AccessDenial::NoClientConfigured { action }),
            },
            Some((_, scopes)) if scopes.iter().any(|scope| scope.permits(action, target)) => Ok(()),
            Some((name, _)) => Err(AccessDenial::forbidden(name, action, target)),
        }
    }

    /// Returns the name and scopes of a client; `None` for an anonymous one that may connect.
    fn find(&self, client: &Client, now: SystemTime) -> Result<Option<(&str, &[Scope])>, AccessDenial> {
        match client {
            Client::Anonymous if self.accepts_anonymous() => Ok(None),
            Client::Anonymous => Err(AccessDenial::CredentialsMissing),
            Client::Token(hash) => {
                // The index is a part of a hash of the secret, so the time of this lookup does not
                // reveal the secret.
                let bucket = self.tokens.get(&hash.index());
                let token = bucket.and_then(|bucket| bucket.iter().find(|token| token.hash == *hash));
                let unknown = match self.is_unconfirmed {
                    true => AccessDenial::TokensUnconfirmed,
                    false => AccessDenial::UnknownToken,
                };
                let token = token.ok_or(unknown)?;
                if token.expires.has_passed(now) {
                    let name = token.name.clone();
                    return Err(AccessDenial::TokenExpired { name });
                }
                token.usage.mark();
                Ok(Some((&token.name, &token.scopes)))
            }
            Client::Certificate(names) => {
                let client = names.iter().find_map(|name| self.certificates.get(name));
                let client = client.ok_or(AccessDenial::UnknownCertificate)?;
                Ok(Some((&client.name, &client.scopes)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::access::Expiry;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn token(name: &str, secret: &str, scopes: &[&str]) -> Token {
        let scopes = scopes.iter().map(|scope| scope.parse().unwrap()).collect();
        Token::new(
            name.to_owned(),
            TokenHash::of(secret),
            scopes,
            Expiry::days_after(NOW, 90),
        )
    }

    #[test]
    fn anonymous_clients_check_and_peek_without_configuration() {
        let table = AccessTable::default();
        for action in Action::ALL {
            let allowed = table.may(&Client::Anonymous, action, &Target::policy("p"), NOW);
            match action {
                Action::Check | Action::Peek => assert_eq!(allowed, Ok(())),
                action => assert_eq!(allowed, Err(AccessDenial::NoClientConfigured { action })),
            }
        }
        let table = AccessTable::new(vec![token("a", "s", &["check:*"])], Vec::new()).unwrap();
        for action in Action::ALL {
            let allowed = table.may(&Client::Anonymous, action, &Target::policy("p"), NOW);
            assert_eq!(allowed, Err(AccessDenial::CredentialsMissing));
        }
    }

    #[test]
    fn token_has_its_scopes_until_it_expires() {
        let scopes = ["refund:policy=search", "reset:domain=edge"];
        let table = AccessTable::new(vec![token("edge", "lim_x", &scopes)], Vec::new()).unwrap();
        let client = Client::of_secret("lim_x");
        let search = Target::policy("search");
        assert_eq!(table.may(&client, Action::Refund, &search, NOW), Ok(()));
        let denied = table.may(&client, Action::Reset, &search, NOW).unwrap_err();
        assert!(denied.is_forbidden());
        assert_eq!(
            denied.to_string(),
            "the client `edge` lacks the scope `reset:policy=search`"
        );
        assert_eq!(
            table.may(&client, Action::Reset, &search.in_domain("edge"), NOW),
            Ok(())
        );
        let unknown = Client::of_secret("lim_y");
        assert_eq!(
            table.may(&unknown, Action::Refund, &search, NOW),
            Err(AccessDenial::UnknownToken)
        );
        let later = NOW + Duration::from_secs(90 * 86_400);
        assert!(matches!(
            table.may(&client, Action::Refund, &search, later),
            Err(AccessDenial::TokenExpired { .. })
        ));
    }

    #[test]
    fn certificate_is_found_by_any_of_its_names() {
        let scopes = vec!["check:*".parse().unwrap()];
        let client = CertificateClient::new("edge".into(), "spiffe://org/edge".into(), scopes);
        let table = AccessTable::new(Vec::new(), vec![client]).unwrap();
        let named = |names: &[&str]| {
            let client = Client::Certificate(names.iter().map(|name| (*name).to_owned()).collect());
            table.identify(&client, NOW).map(str::to_owned)
        };
        assert_eq!(
            named(&["edge.internal", "spiffe://org/edge"]),
            Ok("edge".to_owned())
        );
        assert_eq!(named(&["edge.internal"]), Err(AccessDenial::UnknownCertificate));
        assert_eq!(named(&[]), Err(AccessDenial::UnknownCertificate));
    }

    #[test]
    fn ambiguous_tables_are_rejected() {
        let [a, b] = ["a", "b"].map(|name| token(name, name, &["check:*"]));
        let same_hash = token("c", "a", &["check:*"]);
        for (tokens, reason) in [
            (vec![a.clone(), a.clone()], "two clients have the name `a`"),
            (vec![a.clone(), same_hash], "one hash"),
            (vec![token("a", "x", &[])], "no scopes"),
            (vec![token("", "x", &["check:*"])], "invalid"),
        ] {
            let error = AccessTable::new(tokens, Vec::new()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(AccessTable::new(vec![a, b], Vec::new()).unwrap().len(), 2);
    }
}
