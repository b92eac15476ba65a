//! The responses of this crate's layers: their bodies, their headers, and their configuration.

mod answer_body;
pub(crate) mod body;
mod config;
mod decision_source;
pub(crate) mod grpc;
mod protocol;
mod responder;
mod response_fn;

pub use answer_body::IntoResponseBytes;
pub use body::ResponseBody;
pub use config::ResponseConfig;
pub(crate) use protocol::Protocol;
pub(crate) use responder::{Responder, ResponseFields};
