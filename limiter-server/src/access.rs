//! Access of clients: tokens, client certificates, scopes, and one function that decides.
//!
//! Clients are those of the settings file, and tokens that the control plane issued.
//!
//! A client proves its identity by a bearer token or a TLS certificate and becomes a [`Client`]. A
//! client has [`Scope`]s, each an [`Action`] on a pattern of domains, policies or apps.
//! [`AccessTable::may`] decides for every protocol. Without any configured client, connections are
//! anonymous and may check and peek only, because the listeners are local then.
//!
//! Invariants: a secret is never stored, only its SHA-256; a client that was removed from the
//! configuration, or has an expired token, is refused from its next call on, also on a connection
//! that is open. Tests: in this module, and `tests/access.rs`.

mod current;
mod denial;
mod expiry;
mod issued;
mod scope;
mod table;
mod token;

pub use crate::access::current::Access;
pub use crate::access::denial::AccessDenial;
pub use crate::access::expiry::Expiry;
pub use crate::access::scope::{Action, Scope, Target};
pub use crate::access::table::{AccessTable, CertificateClient, Client};
pub use crate::access::token::{Token, TokenHash, TokenSecret};
