//! The clients of the protocols.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use limiter_core::{Limiter, Policy, Rate};
use redis::aio::MultiplexedConnection;
use tokio::net::TcpStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::messages::{
    OK, RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT, THROTTLE, ThrottleRequest, ThrottleResponse,
};

/// The quota of every limit: so high that each call is allowed.
pub(crate) const QUOTA: u32 = 1_000_000_000;
/// The time in which a limit refills.
const PERIOD: Duration = Duration::from_secs(60);

type CallError = Box<dyn std::error::Error + Send + Sync>;

/// A protocol, with the calls that the contenders of a group share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    EnvoyGrpc,
    ThrottleGrpc,
    HttpCheck,
    HttpThrottle,
    /// A request to a service behind Envoy.
    ProxiedHttp,
    /// The requests of `ProxiedHttp`, sent by wrk.
    ProxiedWrk,
    /// The library in this process.
    Library,
    RespThrottle,
    RespIncrby,
}

/// The connection of one caller.
pub(crate) enum Connection {
    EnvoyGrpc(Grpc<Channel>),
    ThrottleGrpc(Grpc<Channel>),
    Http(SendRequest<Full<Bytes>>, &'static str, fn(u32) -> String),
    Proxied(SendRequest<Full<Bytes>>),
    Library(Limiter, Policy),
    Resp(
        MultiplexedConnection,
        fn(u32) -> redis::Cmd,
        fn(&redis::Value) -> bool,
    ),
}

impl Protocol {
    /// Returns the title of its group in the report.
    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::EnvoyGrpc | Self::ThrottleGrpc => "gRPC",
            Self::HttpCheck | Self::HttpThrottle => "HTTP",
            Self::ProxiedHttp => "HTTP through Envoy",
            Self::ProxiedWrk => "HTTP through Envoy, by wrk",
            Self::Library => "library",
            Self::RespThrottle | Self::RespIncrby => "RESP",
        }
    }

    /// Connects all callers; a multiplexing protocol has `shared` connections.
    pub(crate) async fn connect(self, address: SocketAddr, callers: usize, shared: usize) -> Vec<Connection> {
        let mut connections = Vec::new();
        match self {
            Self::EnvoyGrpc | Self::ThrottleGrpc => {
                let mut channels = Vec::new();
                for _ in 0..shared {
                    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
                    channels.push(endpoint.connect().await.expect("a connection"));
                }
                for channel in channels.iter().cycle().take(callers) {
                    let grpc = Grpc::new(channel.clone());
                    connections.push(match self {
                        Self::EnvoyGrpc => Connection::EnvoyGrpc(grpc),
                        _ => Connection::ThrottleGrpc(grpc),
                    });
                }
            }
            Self::HttpCheck | Self::HttpThrottle => {
                let (path, body): (_, fn(u32) -> String) = match self {
                    Self::HttpCheck => ("/v1/check", check_body),
                    _ => ("/throttle", throttle_body),
                };
                for _ in 0..callers {
                    connections.push(Connection::Http(connect_http(address).await, path, body));
                }
            }
            Self::ProxiedHttp => {
                for _ in 0..callers {
                    connections.push(Connection::Proxied(connect_http(address).await));
                }
            }
            Self::ProxiedWrk => {}
            Self::Library => {
                let limiter = Limiter::redis(format!("redis://{address}"))
                    .namespace("bench")
                    .build();
                let limiter = limiter.expect("a limiter");
                let policy = Policy::token_bucket("requests").capacity(QUOTA);
                let policy = policy
                    .rate(Rate::per(QUOTA, PERIOD).expect("a rate"))
                    .build()
                    .expect("a policy");
                for _ in 0..callers {
                    connections.push(Connection::Library(limiter.clone(), policy.clone()));
                }
            }
            Self::RespThrottle | Self::RespIncrby => {
                let client = redis::Client::open(format!("redis://{address}")).expect("a URL");
                let mut multiplexed = Vec::new();
                for _ in 0..shared {
                    let connection = client.get_multiplexed_async_connection().await;
                    multiplexed.push(connection.expect("a connection"));
                }
                let (command, is_allowed): (fn(u32) -> _, fn(&_) -> _) = match self {
                    Self::RespThrottle => (throttle_command, is_unlimited),
                    _ => (incrby_command, |reply| matches!(reply, redis::Value::Int(_))),
                };
                for connection in multiplexed.iter().cycle().take(callers) {
                    connections.push(Connection::Resp(connection.clone(), command, is_allowed));
                }
            }
        }
        connections
    }
}

async fn connect_http(address: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.expect("HTTP/1.1");
    tokio::spawn(connection);
    sender
}

impl Connection {
    /// Sends one call for a key. Returns whether it was allowed.
    pub(crate) async fn call(&mut self, key: u32) -> Result<bool, CallError> {
        match self {
            Self::EnvoyGrpc(grpc) => {
                grpc.ready().await?;
                let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
                let request = tonic::Request::new(RateLimitRequest::of_address(address_of(key)));
                let path = http::uri::PathAndQuery::from_static(SHOULD_RATE_LIMIT);
                let response = grpc.unary(request, path, codec).await?;
                Ok(response.into_inner().overall_code == OK)
            }
            Self::ThrottleGrpc(grpc) => {
                grpc.ready().await?;
                let codec = ProstCodec::<ThrottleRequest, ThrottleResponse>::default();
                let quota = i32::try_from(QUOTA).unwrap_or(i32::MAX);
                let request = ThrottleRequest {
                    key: address_of(key),
                    max_burst: quota,
                    count_per_period: quota,
                    period: 60,
                    quantity: 1,
                };
                let path = http::uri::PathAndQuery::from_static(THROTTLE);
                let response = grpc.unary(tonic::Request::new(request), path, codec).await?;
                Ok(response.into_inner().allowed)
            }
            Self::Http(sender, path, body) => {
                let request = http::Request::post(*path)
                    .header("host", "localhost")
                    .header("content-type", "application/json")
                    .body(Full::from(body(key)))?;
                let response = sender.send_request(request).await?;
                let is_ok = response.status().is_success();
                response.into_body().collect().await?;
                Ok(is_ok)
            }
            Self::Proxied(sender) => {
                let request = http::Request::post("/v1/check")
                    .header("host", "localhost")
                    .header("x-address", address_of(key))
                    .body(Full::default())?;
                let response = sender.send_request(request).await?;
                let is_ok = response.status().is_success();
                response.into_body().collect().await?;
                Ok(is_ok)
            }
            Self::Library(limiter, policy) => Ok(limiter.check(policy, address_of(key)).await?.is_allowed()),
            Self::Resp(connection, command, is_allowed) => {
                let reply: redis::Value = command(key).query_async(connection).await?;
                Ok(is_allowed(&reply))
            }
        }
    }
}

fn address_of(key: u32) -> String {
    format!("10.0.{}.{}", key / 256, key % 256)
}

fn check_body(key: u32) -> String {
    format!(r#"{{"policy":"requests","key":"{}"}}"#, address_of(key))
}

fn throttle_body(key: u32) -> String {
    let address = address_of(key);
    format!(
        r#"{{"key":"{address}","max_burst":{QUOTA},"count_per_period":{QUOTA},"period":60,"quantity":1}}"#
    )
}

fn throttle_command(key: u32) -> redis::Cmd {
    let mut command = redis::cmd("CL.THROTTLE");
    command.arg(address_of(key)).arg(QUOTA).arg(QUOTA).arg(60);
    command
}

fn incrby_command(key: u32) -> redis::Cmd {
    let mut command = redis::cmd("INCRBY");
    command.arg(address_of(key)).arg(1);
    command
}

/// The first of the five integers of `CL.THROTTLE` is 0.
fn is_unlimited(reply: &redis::Value) -> bool {
    matches!(reply, redis::Value::Array(items) if matches!(items.first(), Some(redis::Value::Int(0))))
}
