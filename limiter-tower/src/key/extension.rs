//! A part of a request extension as the key.
//!
//! An outer layer that has authenticated the request stores the identity in an extension. A closure
//! selects a part of the extension, and the key borrows this part. A missing extension is an error
//! of the server, so it is answered with 500 and logged with the name of its type.
//!
//! Invariant: a request without the extension never shares a key with others. Tests:
//! `extension_set_by_outer_layer_is_the_key` in `tests/http.rs`.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use http::{Request, StatusCode};
use limiter_core::__private::KeyedLogThrottle;
use limiter_core::Key;

use super::extraction::{Extraction, KeyRejection, Missing};
use super::extractor::KeyExtractor;

/// Limits by a part of the request extension `T` that an outer layer has set: the verified claims
/// of a token, a session, a tenant.
///
/// A request without the extension is rejected with 500 (INTERNAL) and logged as an error, because
/// the layer that sets the extension is missing or is not further out. If it sets the extension
/// only for some requests, define the handling of the others with
/// [`or_reject`](Extension::or_reject) or [`or_skip`](Extension::or_skip).
///
/// ```
/// use http::StatusCode;
/// use limiter_tower::key;
///
/// #[derive(Clone)]
/// struct Claims {
///     sub: String,
///     tenant: u64,
/// }
///
/// let by_user = key::extension(|claims: &Claims| &claims.sub).or_reject(StatusCode::UNAUTHORIZED);
/// let by_tenant = key::extension(|claims: &Claims| &claims.tenant).or_skip();
/// ```
///
/// The part is borrowed: text, a number, an address, or a [`Key`] in the extension. For a key of
/// several parts, use a closure over the request:
///
/// ```
/// # #[derive(Clone)]
/// # struct Claims { tenant: u64, sub: String }
/// # use http::Request;
/// # use limiter_core::Key;
/// let by_tenant_and_user = |request: &Request<String>| {
///     let claims = request.extensions().get::<Claims>()?;
///     Some(Key::from("tenant:").part(claims.tenant).text(":").part(&claims.sub))
/// };
/// # limiter_tower::key::KeyExtractor::extract(&by_tenant_and_user, &Request::new(String::new()));
/// ```
pub fn extension<T, K, F>(part: F) -> Extension<T, F>
where
    T: Send + Sync + 'static,
    K: ?Sized + 'static,
    F: Fn(&T) -> &K,
    for<'a> &'a K: Into<Key<'a>>,
{
    Extension {
        part,
        missing: Missing::default(),
        extension: PhantomData,
    }
}

/// Reads the key from the request extension `T`. Created by [`extension`].
#[must_use = "pass the extractor to `RateLimitLayer::key`"]
pub struct Extension<T, F> {
    part: F,
    missing: Missing,
    extension: PhantomData<fn() -> T>,
}

impl<T, F> Extension<T, F> {
    /// Rejects a request without the extension with this status or
    /// [response](KeyRejection#a-whole-response), for example 401 with `WWW-Authenticate`. Default:
    /// 500.
    pub fn or_reject(self, rejection: impl Into<KeyRejection>) -> Self {
        Self {
            missing: Missing::Refuse(rejection.into()),
            ..self
        }
    }

    /// Lets a request without the extension pass, neither limited nor counted. Default: it is
    /// rejected.
    pub fn or_skip(self) -> Self {
        Self {
            missing: Missing::Skip,
            ..self
        }
    }
}

impl<B, T, K, F> KeyExtractor<B> for Extension<T, F>
where
    T: Send + Sync + 'static,
    K: ?Sized + 'static,
    F: Fn(&T) -> &K,
    for<'a> &'a K: Into<Key<'a>>,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        match request.extensions().get::<T>() {
            Some(extension) => Extraction::Key((self.part)(extension).into()),
            None => self.missing.extraction(|| {
                static LOGGED: KeyedLogThrottle = KeyedLogThrottle::new();
                if LOGGED.is_due(&type_name::<T>()) {
                    tracing::error!(
                        extension = type_name::<T>(),
                        "the key's extension is missing; put the layer that inserts it outside the rate limit"
                    );
                }
                KeyRejection::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the server did not identify the client",
                )
            }),
        }
    }
}

impl<T, F: Clone> Clone for Extension<T, F> {
    fn clone(&self) -> Self {
        Self {
            part: self.part.clone(),
            missing: self.missing.clone(),
            extension: PhantomData,
        }
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extension")
            .field("extension", &type_name::<T>())
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}
