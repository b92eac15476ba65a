//! Mistakes that the compiler finds, which it is to find where they are made.

/// What is said of a request whose key is found comes after the key:
///
/// ```compile_fail,E0277
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::{RateLimitLayer, key, skip};
///
/// fn probes_pass(limits: &Limiter, policy: Policy) {
///     let _ = RateLimitLayer::new(limits, policy).skip(skip::probes());
/// }
/// ```
///
/// ```compile_fail,E0277
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::RateLimitLayer;
///
/// fn bytes(limits: &Limiter, policy: Policy) {
///     let _ = RateLimitLayer::new(limits, policy).cost_by(|request: &http::Request<String>| request.body().len());
/// }
/// ```
///
/// ```compile_fail,E0277
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::{InFlightLayer, skip};
///
/// fn probes_pass(limits: &Limiter, policy: Policy) {
///     let _ = InFlightLayer::new(limits, policy).skip(skip::probes());
/// }
/// ```
struct BeforeTheKey;

/// What a closure returns is looked at where it is given to the layer, whatever that wraps later:
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
/// use limiter_tower::{RateLimitLayer, Terms};
///
/// fn refused(limits: &Limiter) {
///     let _ = RateLimitLayer::by(limits, |_: &http::Request<String>| {
///         Err::<Terms<'static>, _>((StatusCode::UNAUTHORIZED, "who are you?"))
///     });
/// }
/// ```
///
/// ```compile_fail,E0277
/// use limiter_core::{Limiter, Policy, Rejection};
/// use limiter_tower::{RateLimitLayer, key};
///
/// fn of_axum(limits: &Limiter, policy: Policy) {
///     let by_key = RateLimitLayer::new(limits, policy).key(key::header("x-api-key"));
///     let _ = by_key.respond_with(|_: &Rejection, _| http::Response::new(axum::body::Body::from("come back")));
/// }
/// ```
struct OfAnotherType;

/// A client is held to one policy:
///
/// ```compile_fail,E0277
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::RateLimitLayer;
///
/// fn several(limits: &Limiter, burst: Policy, daily: Policy) {
///     let _ = RateLimitLayer::outbound(limits, [burst, daily]);
/// }
/// ```
struct Outbound;
