//! Bodies of answers that a program forms itself.

use bytes::Bytes;

/// The body of an answer of a program's own
/// ([`ResponseConfig::respond_with`](crate::ResponseConfig::respond_with)): all that is
/// [`Into<Bytes>`], as a `String`, a `Vec<u8>` and a `&'static str`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no body of an answer",
    note = "an answer has its body at once: a `String`, a `Vec<u8>`, a `&'static str`, or `Bytes`",
    note = "in place of `(status, text).into_response()`, take the response that is given: `response.map(|_| text)`"
)]
pub trait IntoResponseBytes: Into<Bytes> {}

#[diagnostic::do_not_recommend]
impl<T: Into<Bytes>> IntoResponseBytes for T {}
