//! The gRPC service, written by hand so that building needs no protobuf compiler.
//!
//! A request is one message and one answer, so the service reads and writes the frame of the
//! message itself. The general service of the gRPC library spends as much time on a call as the
//! decision. Tests: below.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use http_body::Frame;
use http_body_util::BodyExt;
use prost::Message;
use tonic::Status;
use tonic::codegen::{Body as HttpBody, Bytes, Service, StdError};
use tonic::metadata::MetadataValue;

use crate::access::Client;
use crate::gateway::envoy::messages::{RateLimitRequest, RateLimitResponse};
use crate::gateway::envoy::status_of_denial;
use crate::gateway::{Gateway, credentials};

/// The name of the service.
pub const RATE_LIMIT_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The path of the method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The bytes before a message: a flag for compression, and the length of the message.
const PREFIX: usize = 5;
/// The length of most answers in bytes, for which the buffer is reserved.
const USUAL_BYTES: usize = 128;
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The method `ShouldRateLimit` in front of a gateway.
#[derive(Clone, Debug)]
pub struct RateLimitServer {
    gateway: Gateway,
}

impl RateLimitServer {
    /// Creates a service for this gateway.
    #[must_use]
    pub fn new(gateway: Gateway) -> Self {
        Self { gateway }
    }
}

impl<B> Service<Request<B>> for RateLimitServer
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let gateway = self.gateway.clone();
        Box::pin(async move {
            Ok(match should_rate_limit(&gateway, request).await {
                Ok(response) => unary_response(&response),
                Err(status) => status.into_http(),
            })
        })
    }
}

async fn should_rate_limit<B>(gateway: &Gateway, request: Request<B>) -> Result<RateLimitResponse, Status>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<StdError>,
{
    // Invalid clients are refused before their messages are read.
    let client: Client = credentials::client(request.headers(), request.extensions());
    let valid = gateway.access().validate(&client);
    valid.map_err(|denial| status_of_denial(&denial))?;
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map(|peer| peer.0.ip());
    let max = gateway.limits().max_message_bytes;
    let body = gateway.admission().limit_body(request.into_body());
    let message = read_message(body, max).await?;
    let _place = gateway
        .admission()
        .begin_call()
        .ok_or_else(|| Status::unavailable("too many calls are in flight; retry after a pause"))?;
    gateway.rate_limit_of_peer(&client, peer, message).await
}

/// Reads the only message of a request.
async fn read_message<B>(body: B, max: usize) -> Result<RateLimitRequest, Status>
where
    B: HttpBody<Data = Bytes>,
    Status: From<B::Error>,
{
    let mut body = pin!(body);
    let mut received = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            received.extend_from_slice(&data);
            // A message that is too large is rejected before its bytes have arrived.
            message_in(&received, max)?;
        }
    }
    let message = message_in(&received, max)?
        .ok_or_else(|| Status::invalid_argument("the request ended before its message was complete"))?;
    RateLimitRequest::decode(message)
        .map_err(|error| Status::internal(format!("cannot decode the message: {error}")))
}

/// Returns the message after its prefix; `None` if more bytes are needed.
fn message_in(received: &[u8], max: usize) -> Result<Option<&[u8]>, Status> {
    let Some((prefix, message)) = received.split_first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 {
        return Err(unsupported_compression());
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > max {
        return Err(Status::out_of_range(format!(
            "the message has {length} bytes, expected at most {max}"
        )));
    }
    if message.len() > length {
        return Err(Status::invalid_argument("the request has more than one message"));
    }
    Ok((message.len() == length).then_some(message))
}

/// Returns the status of a compressed message, with the encodings that the protocol requires there.
fn unsupported_compression() -> Status {
    let mut status = Status::unimplemented("the message is compressed, expected one without compression");
    let accepted = MetadataValue::from_static("identity");
    status.metadata_mut().insert("grpc-accept-encoding", accepted);
    status
}

/// Returns the answer with one message and the status OK.
fn unary_response(message: &RateLimitResponse) -> Response<Body> {
    let mut data = Vec::with_capacity(USUAL_BYTES);
    data.extend_from_slice(&[0; PREFIX]);
    // Memory accepts every message.
    let _ = message.encode(&mut data);
    // The lengths of answers are far below 4 GiB.
    let length = u32::try_from(data.len() - PREFIX).unwrap_or(u32::MAX);
    if let Some(place) = data.first_chunk_mut::<PREFIX>() {
        let [a, b, c, d] = length.to_be_bytes();
        *place = [0, a, b, c, d];
    }
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    let mut response = Response::new(Body::new(UnaryBody {
        data: Some(data.into()),
        trailers: Some(trailers),
    }));
    let content_type = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// One message and the trailers after it.
struct UnaryBody {
    data: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl HttpBody for UnaryBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = self.data.take().map(Frame::data);
        let frame = data.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.trailers.is_none()
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn frame_of_a_message_is_checked_before_it_is_complete() {
        assert_eq!(message_in(&[0, 0, 0], 8).unwrap(), None);
        assert_eq!(message_in(&[0, 0, 0, 0, 2, 7], 8).unwrap(), None);
        assert_eq!(message_in(&[0, 0, 0, 0, 2, 7, 9], 8).unwrap(), Some(&[7, 9][..]));
        for (frame, code) in [
            (&[1, 0, 0, 0, 1, 7][..], Code::Unimplemented),
            (&[0, 0, 0, 0, 9], Code::OutOfRange),
            (&[0, 0, 0, 0, 1, 7, 7], Code::InvalidArgument),
        ] {
            assert_eq!(message_in(frame, 8).unwrap_err().code(), code);
        }
    }
}
