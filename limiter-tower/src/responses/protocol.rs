//! The protocol of a client.

use http::{HeaderValue, Request, header};

use super::grpc;

/// The protocol of a client, by its content type.
#[derive(Clone, Debug)]
pub(crate) enum Protocol {
    Http,
    Grpc {
        /// The content type of the response.
        content_type: HeaderValue,
    },
}

impl Protocol {
    pub(crate) fn from_request<B>(request: &Request<B>) -> Self {
        let content_type = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(grpc::response_type);
        content_type.map_or(Self::Http, |content_type| Self::Grpc { content_type })
    }
}
