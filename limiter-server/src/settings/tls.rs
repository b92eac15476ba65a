//! The settings of TLS.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use crate::settings::SettingsError;

/// The files of TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// The certificate of the server, and the certificates between it and the root.
    pub cert_file: PathBuf,
    /// The private key of the certificate.
    pub key_file: PathBuf,
    /// The authorities that sign the certificates of clients.
    pub client_ca_file: Option<PathBuf>,
}

/// The arguments for [`TlsSettings`], and the table `[tls]` of the settings file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsArgs {
    /// Certificate of the server and its intermediates, in PEM. Listeners on TCP then use TLS,
    /// except an admin listener on a loopback address.
    #[arg(long = "tls-cert-file", value_name = "FILE", env = "LIMITER_TLS_CERT_FILE")]
    cert_file: Option<PathBuf>,
    /// Private key of the certificate, in PEM.
    #[arg(long = "tls-key-file", value_name = "FILE", env = "LIMITER_TLS_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Authorities that sign the certificates of clients, in PEM.
    #[arg(
        long = "tls-client-ca-file",
        value_name = "FILE",
        env = "LIMITER_TLS_CLIENT_CA_FILE"
    )]
    client_ca_file: Option<PathBuf>,
}

impl TlsArgs {
    /// Takes the settings that are absent from the file.
    pub(super) fn or(self, file: Self) -> Self {
        Self {
            cert_file: self.cert_file.or(file.cert_file),
            key_file: self.key_file.or(file.key_file),
            client_ca_file: self.client_ca_file.or(file.client_ca_file),
        }
    }

    /// Returns whether no certificate is set.
    pub(super) fn is_absent(&self) -> bool {
        self.cert_file.is_none()
    }

    pub(super) fn resolve(&self) -> Result<Option<TlsSettings>, SettingsError> {
        match (self.cert_file.clone(), self.key_file.clone()) {
            (Some(cert_file), Some(key_file)) => Ok(Some(TlsSettings {
                cert_file,
                key_file,
                client_ca_file: self.client_ca_file.clone(),
            })),
            (None, None) if self.client_ca_file.is_none() => Ok(None),
            _ => Err(SettingsError::Conflict(
                "TLS needs both tls.cert_file and tls.key_file".to_owned(),
            )),
        }
    }
}
