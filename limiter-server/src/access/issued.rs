//! The text of the tokens that the control plane issued.
//!
//! Nodes exchange the hashes, scopes and ends of tokens as `[[token]]` entries, the format of the
//! settings file, so authentication needs no database.

use serde::Deserialize;

use crate::access::Token;

#[derive(Deserialize)]
struct IssuedText {
    #[serde(default)]
    token: Vec<toml::Value>,
}

/// Reads a text. A token that this version cannot read is left out, and logged.
pub(super) fn parse_issued(text: &str) -> Result<Vec<Token>, String> {
    let read: IssuedText = toml::from_str(text).map_err(|error| error.to_string())?;
    let tokens = read.token.into_iter().filter_map(|entry| {
        let token = Token::deserialize(entry);
        token
            .inspect_err(|error| tracing::warn!(%error, "an issued token cannot be read; it is not accepted"))
            .ok()
    });
    Ok(tokens.collect())
}
