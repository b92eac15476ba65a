//! The responses of this crate's layers: their bodies, their headers, and their configuration.

pub(crate) mod body;
mod config;
mod custom_body;
mod decision_source;
pub(crate) mod grpc;
mod protocol;
mod responder;
mod response_fn;

pub use body::ResponseBody;
pub use config::ResponseConfig;
pub use custom_body::IntoResponseBytes;
pub(crate) use protocol::Protocol;
pub(crate) use responder::{Responder, ResponseFields};
