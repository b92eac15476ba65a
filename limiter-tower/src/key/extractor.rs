//! The trait of key extractors.

use http::Request;

use super::extraction::{Extraction, IntoExtraction};

/// Extracts the key of a request with a body of type `B`.
///
/// Closures implement this trait. They name the request's type, and return an owned value
/// ([`IntoExtraction`]):
///
/// ```
/// use axum::{body::Body, extract::Request};
/// use limiter_core::{Key, Limiter, Policy};
/// use limiter_tower::{RateLimitLayer, key};
///
/// let limits = Limiter::in_process().build();
/// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
/// let by_tenant_and_path = |request: &Request| {
///     let tenant = request.headers().get("x-tenant")?.to_str().ok()?;
///     Some(Key::from("tenant:").part(tenant).text(":").part(request.uri().path()))
/// };
/// let app: axum::Router = axum::Router::new().layer(RateLimitLayer::new(&limits, policy).key(by_tenant_and_path));
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
///
/// A custom type may hold its own configuration, and borrow the key from the request:
///
/// ```
/// use http::{Request, StatusCode, header};
/// use limiter_core::Key;
/// use limiter_tower::key::{Extraction, KeyExtractor, KeyRejection};
///
/// /// The label before the domain: `acme` of `acme.example.com`.
/// struct Tenant {
///     domain: String,
/// }
///
/// impl<B> KeyExtractor<B> for Tenant {
///     fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
///         let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
///         match host.and_then(|host| host.strip_suffix(&self.domain)) {
///             Some(tenant) => Extraction::Key(Key::from(tenant)),
///             None => Extraction::Reject(KeyRejection::new(StatusCode::NOT_FOUND, "no such tenant")),
///         }
///     }
/// }
///
/// let by_tenant = Tenant { domain: ".example.com".to_owned() };
/// let request = Request::builder().header("host", "acme.example.com").body(()).unwrap();
/// assert_eq!(by_tenant.extract(&request), Extraction::Key(Key::from("acme")));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the key of a `Request<{B}>`",
    note = "a key is found by one of the functions in `limiter_tower::key`, such as `key::header(\"x-api-key\")`,",
    note = "or by a closure that takes `&Request<{B}>` and returns something owned: a `Key<'static>`, a `String`, \
            a number, an `Option` or `Result` of one of these, or a `key::Extraction`;",
    note = "or by an async function over the request's head, which `key::from_async` makes one of: \
            `key::from_async(|head: Parts| async move {{ … }})`"
)]
pub trait KeyExtractor<B> {
    /// Returns the key, or the reason for its absence.
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a>;
}

#[diagnostic::do_not_recommend]
impl<F, B, A> KeyExtractor<B> for F
where
    F: Fn(&Request<B>) -> A,
    A: IntoExtraction,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        self(request).into_extraction()
    }
}
