//! Key extractors: each key has its own permits.
//!
//! | extractor | key | a request without it |
//! |---|---|---|
//! | [`header("x-api-key")`](header) | the header's value | 400 / INVALID_ARGUMENT |
//! | [`metadata("x-api-key")`](metadata) | the value of the gRPC metadata | 400 / INVALID_ARGUMENT |
//! | [`peer_ip()`](peer_ip()) | the address of the connected peer | 500 / INTERNAL |
//! | [`client_ip(TrustedProxies::hops(1))`](client_ip()) | the client's address as reported by trusted proxies | limited by the address of the peer, or as `or_reject` states |
//! | [`path()`](path()) | the path | |
//! | `matched_path()`, feature `axum` | the route's template: `/users/{id}` | 404 / NOT_FOUND |
//! | [`grpc_method()`](grpc_method()) | `package.Service/Method` | 501 / UNIMPLEMENTED |
//! | [`extension(\|user: &User\| &user.id)`](extension) | a part of a request extension | 500 / INTERNAL |
//! | [`global()`](global) | one key for all requests | |
//! | a closure over `&Request<B>` | the closure's result | see [`IntoExtraction`] |
//! | [`from_async`]: an async function over the request's head | the function's result | see [`IntoExtraction`] |
//! | `from_parts`, feature `axum`: any `FromRequestParts`, or a tuple | a closure's result for the extracted value | the extractor's own rejection |
//! | a tuple of up to four of these | the combination of all keys | that of the first extractor without a key |
//!
//! No extractor falls back to a common key. A request without a key is rejected, unless `or_skip`
//! lets it pass.

mod address;
mod async_key;
mod boxed;
mod client_ip;
mod extension;
mod extraction;
mod extractor;
mod forwarded;
#[cfg(feature = "axum")]
mod from_parts;
mod global;
mod grpc_method;
mod header;
mod ip_net;
#[cfg(feature = "axum")]
mod matched_path;
mod path;
mod peer;
mod peer_addr;
mod trusted_proxies;
mod tuple;

pub(crate) use address::Prefixes;
pub use async_key::{FromAsync, from_async};
pub use boxed::BoxKeyExtractor;
pub use client_ip::{ClientIp, client_ip};
pub use extension::{Extension, extension};
pub use extraction::{Extraction, IntoExtraction, KeyRejection, PendingKey};
pub use extractor::KeyExtractor;
#[cfg(fuzzing)]
pub(crate) use forwarded::{Syntax, nearest_first};
#[cfg(feature = "axum")]
pub use from_parts::{FromParts, from_parts};
pub use global::{Global, global};
pub use grpc_method::{GrpcMethod, grpc_method};
pub use header::{Header, header, metadata};
pub use ip_net::IpNet;
#[cfg(feature = "axum")]
pub use matched_path::{MatchedPathKey, matched_path};
pub use path::{Path, path};
pub use peer::{PeerIp, peer_ip};
pub use trusted_proxies::TrustedProxies;

/// Returns the prefix lengths of the keys that an extractor produces. `None` for an extractor whose
/// keys are not addresses; a tuple is not an address.
pub(crate) fn prefixes_of(extractor: &dyn std::any::Any) -> Option<Prefixes> {
    let peer = extractor.downcast_ref::<PeerIp>().map(PeerIp::prefixes);
    peer.or_else(|| extractor.downcast_ref::<ClientIp>().map(ClientIp::prefixes))
}
