//! Tokens of the tests.

use limiter_server::access::TokenHash;

/// A token that the settings of [`entry`] and [`ALL_SCOPES`] permit.
pub(crate) const TOKEN: &str = "lim_0000000000000000000000000000000000000000000000000000000000000001";

/// All scopes on all targets.
pub(crate) const ALL_SCOPES: [&str; 6] = [
    "check:*",
    "acquire:*",
    "reserve:*",
    "refund:*",
    "reset:*",
    "namespace",
];

/// The entry of a token in the settings file.
pub(crate) fn entry(name: &str, secret: &str, scopes: &[&str]) -> String {
    let hash = TokenHash::of(secret);
    format!("[[token]]\nname = '{name}'\nsha256 = '{hash}'\nscopes = {scopes:?}\nexpires = 2100-01-01\n")
}

/// The header of a token.
pub(crate) fn bearer(secret: &str) -> String {
    format!("Bearer {secret}")
}
