//! Private parsers of untrusted input, for the targets in `tools/fuzz/`. Compiled only under
//! `cfg(fuzzing)`.

use std::net::IpAddr;

use crate::key::{Syntax, TrustedProxies};

/// The lines of `X-Forwarded-For`, or of `Forwarded`.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    /// True for lines of `Forwarded`.
    pub is_rfc_7239: bool,
    /// The lines, in order.
    pub lines: &'a [Vec<u8>],
}

impl Lines<'_> {
    /// Returns the addresses in the lines, the nearest first.
    pub fn addresses(self) -> impl Iterator<Item = Option<IpAddr>> {
        let syntax = if self.is_rfc_7239 {
            Syntax::Forwarded
        } else {
            Syntax::List
        };
        crate::key::nearest_first(syntax, self.lines.iter().map(Vec::as_slice))
    }

    /// Returns the client's address.
    pub fn client(self, trust: &TrustedProxies, peer: Option<IpAddr>) -> Option<IpAddr> {
        trust.client(|| peer, self.addresses()).ok()
    }
}
