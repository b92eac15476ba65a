//! The receiver of events. Only the settings file names it, because the server connects to its host
//! from within the operator's network.

use std::path::PathBuf;

use serde::Deserialize;

use crate::settings::SettingsError;
use crate::settings::secret_file::read_secret;

/// The receiver of events.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSettings {
    url: String,
}

/// Shows no URL, which can contain a secret.
impl std::fmt::Debug for WebhookSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebhookSettings(..)")
    }
}

impl WebhookSettings {
    /// Returns the URL, which begins with `http://` or `https://`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// The table `[webhook]` of the settings file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookTable {
    url: Option<String>,
    url_file: Option<PathBuf>,
}

impl WebhookTable {
    pub(super) fn resolve(&self) -> Result<Option<WebhookSettings>, SettingsError> {
        let url = match (&self.url, &self.url_file) {
            (None, None) => return Ok(None),
            (Some(url), None) => url.clone(),
            (None, Some(path)) => read_secret(path)?,
            (Some(_), Some(_)) => {
                let reason = "both webhook.url and webhook.url_file are set, expected one of them";
                return Err(SettingsError::Conflict(reason.to_owned()));
            }
        };
        let uri: Result<axum::http::Uri, _> = url.parse();
        let is_valid = uri.is_ok_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.authority().is_some_and(|of| !of.as_str().contains('@'))
        });
        match is_valid {
            true => Ok(Some(WebhookSettings { url })),
            false => Err(SettingsError::Invalid {
                setting: "webhook.url",
                value: "not shown".to_owned(),
                expected: "a URL that begins with http:// or https://, without user and password",
            }),
        }
    }
}
