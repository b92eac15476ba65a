//! Replacement for TLS in builds without the feature `tls`.

use std::convert::Infallible;
use std::io;

use tokio::net::TcpStream;

use crate::error::ConfigError;
use crate::redis::client::tls::Certificates;

/// Uninhabited.
#[derive(Clone)]
pub(crate) struct Tls(Infallible);

impl Tls {
    #[expect(clippy::unnecessary_wraps, reason = "with the feature it may fail")]
    pub(crate) fn new(_: &Certificates) -> Result<Option<Self>, ConfigError> {
        Ok(None)
    }

    pub(crate) async fn over(self, _: TcpStream, _: &str) -> io::Result<TcpStream> {
        match self.0 {}
    }
}
