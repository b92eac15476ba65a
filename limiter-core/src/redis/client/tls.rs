//! TLS to servers, by rustls. Its provider of cryptography is ours alone: nothing is installed for
//! the whole process, and nothing that the program installs or enables matters here.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod rustls;

use std::fmt;

#[cfg(not(feature = "tls"))]
pub(crate) use crate::redis::client::tls::absent::Tls;
#[cfg(feature = "tls")]
pub(crate) use crate::redis::client::tls::rustls::Tls;

/// What a program gives besides URLs, in PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// Certificates of the authorities to trust, in place of the system's.
    pub(crate) roots: Option<Vec<u8>>,
    /// What to show to servers that ask: a chain of certificates, and the key of the first.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    pub(crate) fn are_given(&self) -> bool {
        self.roots.is_some() || self.client.is_some()
    }
}

/// Whether they were given; never the key.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("roots", &self.roots.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}
