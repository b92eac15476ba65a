//! The reason for which an action is not permitted to a client.

use std::fmt;

use crate::access::{Action, Target};

/// The reason for a rejected action of a client. The text names the missing setting or header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessDenial {
    /// No client is configured, and the action needs one.
    NoClientConfigured {
        /// The action.
        action: Action,
    },
    /// Clients are configured, and the request has no credentials.
    CredentialsMissing,
    /// No configured token has the hash of the secret.
    UnknownToken,
    /// The token is not configured, and the source has not confirmed the issued tokens within the
    /// limit.
    TokensUnconfirmed,
    /// The validity of the token has ended.
    TokenExpired {
        /// The name of the token.
        name: String,
    },
    /// No configured client has a name of the certificate.
    UnknownCertificate,
    /// The client has no scope for the action on the target.
    Forbidden {
        /// The name of the client.
        client: String,
        /// A scope that would permit the call.
        needed: String,
    },
}

impl AccessDenial {
    /// Returns whether the client is known and lacks a scope: 403 and PERMISSION_DENIED instead of
    /// 401 and UNAUTHENTICATED.
    #[must_use]
    pub const fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden { .. })
    }

    /// Returns whether the client can be valid, but its token cannot be confirmed now: 503 and
    /// UNAVAILABLE.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::TokensUnconfirmed)
    }

    pub(super) fn forbidden(client: &str, action: Action, target: &Target<'_>) -> Self {
        let needed = match (target.policy, target.domain) {
            _ if action == Action::Namespace => action.name().to_owned(),
            (Some(policy), _) => format!("{action}:policy={policy:.120}"),
            (None, Some(domain)) => format!("{action}:domain={domain:.120}"),
            (None, None) => format!("{action}:*"),
        };
        Self::Forbidden {
            client: client.to_owned(),
            needed,
        }
    }
}

impl fmt::Display for AccessDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoClientConfigured { action } => write!(
                f,
                "{action} needs a token, and no token is configured: run `limiter-server token new`, \
                 add its [[token]] entry to limiter-server.toml, and send the token"
            ),
            Self::CredentialsMissing => {
                f.write_str("expected the header `authorization: Bearer lim_…` or a client certificate")
            }
            Self::UnknownToken => f.write_str("the token is not configured on this server"),
            Self::TokensUnconfirmed => f.write_str(
                "the token cannot be confirmed, because neither Redis nor the database answers: try again",
            ),
            Self::TokenExpired { name } => write!(
                f,
                "the token `{name}` has expired: replace it with one from `limiter-server token new`"
            ),
            Self::UnknownCertificate => f.write_str(
                "no name of the client certificate is configured: add a [[client]] entry to limiter-server.toml",
            ),
            Self::Forbidden { client, needed } => {
                write!(f, "the client `{client}` lacks the scope `{needed}`")
            }
        }
    }
}

impl std::error::Error for AccessDenial {}
