//! TLS connections by rustls. The cryptography provider is private to the limiter: it installs
//! nothing process-wide and does not depend on the program's provider.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod rustls;

use std::fmt;

#[cfg(not(feature = "tls"))]
pub(crate) use crate::redis::client::tls::absent::Tls;
#[cfg(feature = "tls")]
pub(crate) use crate::redis::client::tls::rustls::Tls;

/// Certificates and key in PEM, configured besides the URLs.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// Root certificates that replace the system's.
    pub(crate) roots: Option<Vec<u8>>,
    /// Client certificate chain, and the private key of its first certificate.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    pub(crate) fn is_configured(&self) -> bool {
        self.roots.is_some() || self.client.is_some()
    }
}

/// Shows only whether they are set, never the key.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("roots", &self.roots.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}
