//! The called gRPC method as the key.
//!
//! The path of a gRPC request is `/package.Service/Method`. The key borrows the path without its
//! first slash. Other paths name no method and are rejected with UNIMPLEMENTED, as by gRPC servers.
//!
//! Invariant: a key contains exactly one slash, between two names. Tests: below, and
//! `tonic_server_provides_peer_and_method` in `tests/grpc/keys.rs`.

use http::{Request, StatusCode};
use limiter_core::Key;

use super::extraction::{Extraction, KeyRejection, Missing};
use super::extractor::KeyExtractor;

/// Limits each gRPC method separately, for all callers together: the key is
/// `package.Service/Method`.
///
/// A request whose path names no method is rejected with 501 (UNIMPLEMENTED), the code that gRPC
/// servers use, unless [`or_reject`](GrpcMethod::or_reject) or [`or_skip`](GrpcMethod::or_skip) is
/// set. The layer does not know the server's methods: a method that does not exist has its own
/// budget.
///
/// ```
/// # use http::Request;
/// # use limiter_core::Key;
/// # use limiter_tower::key::{self, Extraction, KeyExtractor};
/// let request = Request::post("http://[::1]:50051/helloworld.Greeter/SayHello").body(()).unwrap();
/// assert_eq!(
///     key::grpc_method().extract(&request),
///     Extraction::Key(Key::from("helloworld.Greeter/SayHello")),
/// );
/// ```
pub fn grpc_method() -> GrpcMethod {
    GrpcMethod {
        missing: Missing::default(),
    }
}

/// Returns the gRPC method as the key. Created by [`grpc_method`].
#[derive(Clone, Debug)]
#[must_use = "pass the extractor to `RateLimitLayer::key`"]
pub struct GrpcMethod {
    missing: Missing,
}

impl GrpcMethod {
    /// Rejects a request whose path names no method with this status or response. Default: 501.
    pub fn or_reject(self, rejection: impl Into<KeyRejection>) -> Self {
        Self {
            missing: Missing::Refuse(rejection.into()),
        }
    }

    /// Lets a request whose path names no method pass, neither limited nor counted. Default: it is
    /// rejected.
    pub fn or_skip(self) -> Self {
        Self {
            missing: Missing::Skip,
        }
    }
}

impl<B> KeyExtractor<B> for GrpcMethod {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        match method(request.uri().path()) {
            Some(method) => Extraction::Key(Key::from(method)),
            None => self.missing.extraction(|| {
                KeyRejection::new(StatusCode::NOT_IMPLEMENTED, "the path names no gRPC method")
            }),
        }
    }
}

/// `Service/Method` of a path `/Service/Method`.
fn method(path: &str) -> Option<&str> {
    let path = path.strip_prefix('/')?;
    let (service, method) = path.split_once('/')?;
    let names_both = !service.is_empty() && !method.is_empty() && !method.contains('/');
    names_both.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_has_service_and_name() {
        assert_eq!(method("/a.b.Greeter/Greet"), Some("a.b.Greeter/Greet"));
        for other in [
            "",
            "/",
            "*",
            "/greet",
            "//Greet",
            "/Greeter/",
            "/a/b/c",
            "/a//b",
            "a/b",
        ] {
            assert_eq!(method(other), None, "{other}");
        }
    }
}
