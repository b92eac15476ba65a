//! The settings of explanations of denials: the form of the key, and the address of the pages.
//!
//! Tests: below.

use std::path::PathBuf;

use axum::http::Uri;
use clap::Args;

use crate::settings::SettingsError;
use crate::settings::secret_file::read_secret;

/// The form of the key in explanations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KeyForm {
    /// No key.
    #[default]
    Omit,
    /// The values of the key in clear text.
    Plain,
    /// The fingerprint of the values.
    Hashed,
}

/// The settings of explanations of denials.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplanationSettings {
    /// The form of the key.
    pub key_form: KeyForm,
    /// The secret of the fingerprints of keys; without it, the nodes of the namespace share one.
    pub key_secret: Option<String>,
    /// The address at which users reach the pages, without a slash at its end.
    pub public_url: Option<String>,
}

/// Shows no secret.
impl std::fmt::Debug for ExplanationSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExplanationSettings")
            .field("key_form", &self.key_form)
            .field("public_url", &self.public_url)
            .finish_non_exhaustive()
    }
}

/// The arguments for [`ExplanationSettings`].
#[derive(Args, Clone, Debug, Default)]
pub(super) struct ExplanationArgs {
    /// Form of the key in explanations of denials. Default: omit.
    #[arg(long, value_name = "FORM", env = "LIMITER_KEY_IN_METADATA")]
    pub(super) key_in_metadata: Option<KeyForm>,
    /// File that contains the secret of the fingerprints of keys. Default: a secret that the nodes
    /// of the namespace share in Redis and the database.
    #[arg(long, value_name = "FILE", env = "LIMITER_KEY_SECRET_FILE")]
    pub(super) key_secret_file: Option<PathBuf>,
    /// Address at which users reach the admin pages, to which denials over HTTP then link.
    #[arg(long, value_name = "URL", env = "LIMITER_PUBLIC_URL")]
    pub(super) public_url: Option<String>,
}

impl ExplanationArgs {
    /// Takes the settings that are absent from the file.
    pub(super) fn or(self, file: Self) -> Self {
        Self {
            key_in_metadata: self.key_in_metadata.or(file.key_in_metadata),
            key_secret_file: self.key_secret_file.or(file.key_secret_file),
            public_url: self.public_url.or(file.public_url),
        }
    }

    pub(super) fn resolve(&self) -> Result<ExplanationSettings, SettingsError> {
        Ok(ExplanationSettings {
            key_form: self.key_in_metadata.unwrap_or_default(),
            key_secret: self.key_secret_file.as_deref().map(read_secret).transpose()?,
            public_url: self.public_url.as_deref().map(public_url).transpose()?,
        })
    }
}

/// Validates the address of the pages.
fn public_url(text: &str) -> Result<String, SettingsError> {
    let is_valid = text.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.authority().is_some_and(|of| !of.as_str().contains('@'))
            && uri.query().is_none()
            && !text.contains('#')
    });
    match is_valid {
        true => Ok(text.trim_end_matches('/').to_owned()),
        false => Err(SettingsError::Invalid {
            setting: "public_url",
            value: text.to_owned(),
            expected: "a URL such as https://limits.example.com, without user, password and query",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_url_has_no_query_and_no_password() {
        assert_eq!(public_url("https://a.example/").unwrap(), "https://a.example");
        assert_eq!(
            public_url("http://[::1]:8082/limits").unwrap(),
            "http://[::1]:8082/limits"
        );
        for text in [
            "",
            "limits.example.com",
            "/e",
            "ftp://a.example",
            "https://u:p@a.example",
            "https://a.example/?x=1",
            "https://a.example/#x",
        ] {
            assert!(public_url(text).is_err(), "{text}");
        }
    }
}
