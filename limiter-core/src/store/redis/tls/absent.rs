//! What stands for TLS in a build without it.

use std::convert::Infallible;
use std::io;

use tokio::net::TcpStream;

use super::Certificates;
use crate::error::ConfigError;

/// There is none.
#[derive(Clone)]
pub(in crate::store::redis) struct Tls(Infallible);

impl Tls {
    #[expect(clippy::unnecessary_wraps, reason = "with the feature it may fail")]
    pub(in crate::store::redis) fn new(_: &Certificates) -> Result<Option<Self>, ConfigError> {
        Ok(None)
    }

    pub(in crate::store::redis) async fn over(self, _: TcpStream, _: &str) -> io::Result<TcpStream> {
        match self.0 {}
    }
}
