//! Errors that the compiler reports at the line that causes them.

/// The return type of a closure is checked where the closure is passed to the layer, independent of
/// the service that the layer wraps later:
///
/// ```compile_fail,E0277
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::{RateLimitLayer, key};
///
/// fn maybe(limits: &Limiter, policy: Policy) {
///     let by_key = RateLimitLayer::new(limits, policy).key(key::header("x-api-key"));
///     let _ = by_key.cost_by(|request: &http::Request<String>| request.headers().get("x-rows").map(|_| 3));
/// }
/// ```
///
/// ```compile_fail,E0277
/// use http::StatusCode;
/// use limiter_core::Limiter;
/// use limiter_tower::{RateLimitLayer, RequestLimits};
///
/// fn refused(limits: &Limiter) {
///     let _ = RateLimitLayer::limits_for(limits, |_: &http::Request<String>| {
///         Err::<RequestLimits<'static>, _>((StatusCode::UNAUTHORIZED, "who are you?"))
///     });
/// }
/// ```
///
/// ```compile_fail,E0277
/// use limiter_core::Rejection;
/// use limiter_tower::ResponseConfig;
///
/// fn axum_body() {
///     let _ = ResponseConfig::new().respond_with(|_: &Rejection, _| http::Response::new(axum::body::Body::from("come back")));
/// }
/// ```
struct InvalidReturnType;

/// An outbound layer takes one policy:
///
/// ```compile_fail,E0277
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::RateLimitLayer;
///
/// fn several(limits: &Limiter, burst: Policy, daily: Policy) {
///     let _ = RateLimitLayer::outbound(limits, [burst, daily]);
/// }
/// ```
struct OutboundWithSeveralPolicies;
