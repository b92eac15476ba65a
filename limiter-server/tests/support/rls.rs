//! A blocking client of the rate limit service, of health and of reflection.

use std::net::SocketAddr;

use super::access;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use limiter_server::gateway::envoy::messages::{RateLimitRequest, RateLimitResponse};
use prost::Message;
use prost_types::FileDescriptorProto;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::client::Grpc;
use tonic::codegen::Bytes;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_prost::ProstCodec;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

/// The length of the prefix of a message.
const PREFIX: usize = 5;
/// The path of the method.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A message after its prefix.
pub(crate) fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a small message");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// A connection.
#[derive(Debug)]
pub(crate) struct RlsClient {
    runtime: Runtime,
    channel: Channel,
    token: Option<String>,
}

impl RlsClient {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = runtime.block_on(endpoint.connect()).expect("a connection");
        Self {
            runtime,
            channel,
            token: None,
        }
    }

    /// Sends a token with each request.
    pub(crate) fn with_token(self, secret: &str) -> Self {
        Self {
            token: Some(access::bearer(secret)),
            ..self
        }
    }

    /// Sends a request and returns its decision.
    pub(crate) fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.runtime.block_on(async {
            let mut grpc = Grpc::new(self.channel.clone());
            let not_ready = |error| Status::unknown(format!("the connection failed: {error}"));
            grpc.ready().await.map_err(not_ready)?;
            let codec: ProstCodec<RateLimitRequest, RateLimitResponse> = ProstCodec::default();
            let mut request = tonic::Request::new(request.clone());
            if let Some(token) = &self.token {
                let token = token.parse().expect("a header");
                request.metadata_mut().insert("authorization", token);
            }
            let answer = grpc.unary(request, PATH.parse().expect("a path"), codec).await?;
            Ok(answer.into_inner())
        })
    }

    /// Sends a message in its encoded form.
    pub(crate) fn send_encoded(&self, message: Vec<u8>) -> Result<RateLimitResponse, Status> {
        // A field without a tag cannot be encoded otherwise.
        self.send_data(&[frame(&message)])
    }

    /// Sends a body in these parts.
    pub(crate) fn send_data(&self, parts: &[Vec<u8>]) -> Result<RateLimitResponse, Status> {
        let parts = tokio_stream::iter(parts.to_vec());
        self.runtime
            .block_on(send_body(self.channel.clone(), (PATH, None), parts))
    }

    /// Sends a part of a body, and no more.
    pub(crate) fn send_unfinished(&self, part: &[u8]) -> Result<RateLimitResponse, Status> {
        let parts = tokio_stream::once(part.to_vec()).chain(tokio_stream::pending());
        self.runtime
            .block_on(send_body(self.channel.clone(), (PATH, None), parts))
    }

    /// Sends a part of a message to a method that has no answer to it within 20 seconds, or an
    /// error.
    pub(crate) fn send_prefix(&self, path: &'static str, prefix: &[u8]) -> Result<RateLimitResponse, Status> {
        let parts = tokio_stream::once(prefix.to_vec()).chain(tokio_stream::pending());
        self.runtime.block_on(async {
            let sent = send_body(self.channel.clone(), (path, None), parts);
            let answer = tokio::time::timeout(std::time::Duration::from_secs(20), sent).await;
            answer.map_err(|_| Status::cancelled("no answer"))?
        })
    }

    /// Opens a stream of reflection that the client does not end, and reads its first answer.
    pub(crate) fn open_reflection(&self) -> Streaming<ServerReflectionResponse> {
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let requests = tokio_stream::once(request).chain(tokio_stream::pending());
        self.runtime.block_on(async {
            let mut client = ServerReflectionClient::new(self.channel.clone());
            let answers = client.server_reflection_info(requests).await;
            let mut answers = answers.expect("reflection").into_inner();
            assert!(answers.message().await.expect("a stream").is_some());
            answers
        })
    }

    /// Waits for the end of a stream without further answers: its status.
    pub(crate) fn end_of(&self, answers: &mut Streaming<ServerReflectionResponse>) -> Status {
        let ended = self.runtime.block_on(answers.message());
        match ended {
            Ok(None) => Status::ok(""),
            Ok(Some(answer)) => panic!("{answer:?}"),
            Err(status) => status,
        }
    }

    /// Sends the first part of a body, calls a function when the server has received it, and sends
    /// the rest.
    pub(crate) fn send_around(
        &self,
        [first, rest]: [&[u8]; 2],
        meanwhile: impl FnOnce(),
    ) -> Result<RateLimitResponse, Status> {
        self.runtime.block_on(async {
            let (parts, body) = tokio::sync::mpsc::channel(2);
            parts.send(first.to_vec()).await.expect("a receiver");
            let (channel, token) = (self.channel.clone(), self.token.clone());
            let call = tokio::spawn(send_body(channel, (PATH, token), ReceiverStream::new(body)));
            // The connection keeps the order. The first answer can precede the call.
            for _ in 0..2 {
                let request = HealthCheckRequest::default();
                let answer = HealthClient::new(self.channel.clone()).check(request).await;
                answer.expect("health");
            }
            meanwhile();
            parts.send(rest.to_vec()).await.expect("a receiver");
            drop(parts);
            call.await.expect("the call")
        })
    }

    /// Follows the health of a service.
    pub(crate) fn watch_health(self, service: &str) -> HealthWatch {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let states = self
            .runtime
            .block_on(HealthClient::new(self.channel.clone()).watch(request));
        HealthWatch {
            states: states.expect("a stream").into_inner(),
            client: self,
        }
    }

    /// Runs the connection without a call.
    pub(crate) fn run_for(&self, time: std::time::Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    /// Returns whether the health service reports a service as serving.
    pub(crate) fn is_serving(&self, service: &str) -> bool {
        self.runtime.block_on(async {
            let request = HealthCheckRequest {
                service: service.to_owned(),
            };
            let answer = HealthClient::new(self.channel.clone()).check(request).await;
            answer.expect("health").into_inner().status() == ServingStatus::Serving
        })
    }

    /// The files that describe a symbol, by reflection.
    pub(crate) fn files_of(&self, symbol: &str) -> Vec<FileDescriptorProto> {
        self.runtime.block_on(async {
            let request = ServerReflectionRequest {
                host: String::new(),
                message_request: Some(MessageRequest::FileContainingSymbol(symbol.to_owned())),
            };
            let mut client = ServerReflectionClient::new(self.channel.clone());
            let answers = client.server_reflection_info(tokio_stream::iter([request])).await;
            let answer = answers.expect("reflection").into_inner().message().await;
            match answer.expect("a stream").expect("an answer").message_response {
                Some(MessageResponse::FileDescriptorResponse(files)) => {
                    let files = files.file_descriptor_proto.iter();
                    files
                        .map(|file| FileDescriptorProto::decode(&**file).expect("a description"))
                        .collect()
                }
                other => panic!("{other:?}"),
            }
        })
    }
}

/// Sends a body in parts, and reads the status and the message of the answer.
async fn send_body(
    mut channel: Channel,
    (path, token): (&'static str, Option<String>),
    parts: impl Stream<Item = Vec<u8>> + Send + 'static,
) -> Result<RateLimitResponse, Status> {
    let frames = parts.map(|part| Ok::<_, Status>(Frame::data(Bytes::from(part))));
    let mut request = tonic::codegen::http::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(token) = token {
        request = request.header("authorization", token);
    }
    let request = request
        .body(tonic::body::Body::new(StreamBody::new(frames)))
        .expect("a request");
    let unknown = |error: &dyn std::fmt::Display| Status::unknown(error.to_string());
    let ready = std::future::poll_fn(|cx| tower::Service::poll_ready(&mut channel, cx)).await;
    ready.map_err(|error| unknown(&error))?;
    let sent = tower::Service::call(&mut channel, request).await;
    let sent = sent.map_err(|error| unknown(&error))?;
    if let Some(status) = Status::from_header_map(sent.headers()) {
        return Err(status);
    }
    let received = sent.into_body().collect().await?;
    let status = received.trailers().and_then(Status::from_header_map);
    let status = status.ok_or_else(|| unknown(&"no status in the trailers"))?;
    let data = received.to_bytes();
    match (status.code(), data.split_at_checked(PREFIX)) {
        (tonic::Code::Ok, Some((_, message))) => {
            RateLimitResponse::decode(message).map_err(|error| unknown(&error))
        }
        _ => Err(status),
    }
}

/// The reported states of a service.
#[derive(Debug)]
pub(crate) struct HealthWatch {
    states: Streaming<HealthCheckResponse>,
    client: RlsClient,
}

impl HealthWatch {
    /// Waits for the next state: whether the service is serving. `None` after the last one.
    pub(crate) fn next(&mut self) -> Option<bool> {
        let next = self.client.runtime.block_on(self.states.message());
        let next = next.ok().flatten();
        next.map(|state| state.status() == ServingStatus::Serving)
    }
}
