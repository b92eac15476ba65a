//! Bodies of custom responses.

use bytes::Bytes;

/// The body of a custom response
/// ([`ResponseConfig::respond_with`](crate::ResponseConfig::respond_with)): any type that
/// implements [`Into<Bytes>`], such as `String`, `Vec<u8>` and `&'static str`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response body",
    note = "a custom response has a complete body: a `String`, a `Vec<u8>`, a `&'static str`, or `Bytes`",
    note = "in place of `(status, text).into_response()`, modify the given response: `response.map(|_| text)`"
)]
pub trait IntoResponseBytes: Into<Bytes> {}

#[diagnostic::do_not_recommend]
impl<T: Into<Bytes>> IntoResponseBytes for T {}
