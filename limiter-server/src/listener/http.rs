//! HTTP/1 and HTTP/2 on the connections of a listener.
//!
//! Each connection is a task with the limits of the listener: headers, concurrent streams, pings of
//! idle HTTP/2 peers, and the time for which a peer may leave a response unread. At the end, the
//! listener closes, connections that have arrived are served, and each connection finishes the
//! requests in flight.
//!
//! Tests: `tests/listeners.rs`, `tests/attacks.rs`, `tests/lifecycle.rs`.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::{Request, Version};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::Service;
use tracing::Instrument as _;

use crate::access::Client;
use crate::listener::requests::{ConnectionRequests, RequestExecutor};
use crate::listener::unsent::{CountedBody, UnsentChunks};
use crate::listener::{ClientConnection, Listener, MAX_LAST_CONNECTIONS, PendingConnection, call_span};
use crate::settings::ListenerLimits;

/// The largest number of requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// The bytes of request bodies that one HTTP/2 connection buffers before they are read.
const WINDOW: u32 = 1 << 20;
/// The largest number of headers of an HTTP/1 request.
const MAX_HEADERS: usize = 100;

/// The versions of HTTP that a listener accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/1 and HTTP/2.
    All,
    /// HTTP/2 alone, as gRPC needs it.
    Http2,
}

/// Serves the routes until `end` is true, then finishes the requests in flight.
pub async fn serve<S>(listener: Listener, versions: HttpVersions, routes: S, mut end: watch::Receiver<bool>)
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let settings = (listener.protocol(), versions, listener.limits().clone());
    let each_end = end.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            connection = listener.accept() => {
                connections.spawn(serve_connection(settings.clone(), connection, routes.clone(), each_end.clone()));
            }
            Some(_) = connections.join_next() => {}
            // An error means that the sender is gone, which is an end as well.
            _ = end.wait_for(|end| *end) => break,
        }
    }
    // Clients that have connected are served; others are refused from here on.
    for _ in 0..MAX_LAST_CONNECTIONS {
        let Some(connection) = listener.accept_arrived().await else {
            break;
        };
        connections.spawn(serve_connection(
            settings.clone(),
            connection,
            routes.clone(),
            each_end.clone(),
        ));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

fn builder(
    versions: HttpVersions,
    limits: &ListenerLimits,
    executor: RequestExecutor,
) -> Builder<RequestExecutor> {
    let mut builder = Builder::new(executor);
    let max_header = usize::try_from(limits.max_header_bytes).unwrap_or(usize::MAX);
    builder
        .http1()
        .timer(TokioTimer::new())
        // The stream times the headers: this timeout would also end idle connections.
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(max_header);
    // A peer that answers pings keeps an idle connection.
    let ping = (limits.idle_timeout / 2).max(Duration::from_millis(1));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(limits.max_header_bytes)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_connection_window_size(WINDOW)
        .keep_alive_interval(ping)
        .keep_alive_timeout(ping);
    match versions {
        HttpVersions::All => builder,
        HttpVersions::Http2 => builder.http2_only(),
    }
}

async fn serve_connection<S>(
    (protocol, versions, limits): (&'static str, HttpVersions, ListenerLimits),
    connection: PendingConnection,
    routes: S,
    mut end: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let established = match connection.establish(end.clone()).await {
        Ok(established) => established,
        Err(error) => {
            tracing::debug!(%error, "a TLS handshake failed");
            return;
        }
    };
    let ClientConnection {
        stream,
        peer,
        client,
        permit,
    } = established;
    let stream = match versions {
        HttpVersions::All => stream.with_phases(),
        HttpVersions::Http2 => stream,
    };
    let phase = stream.phase();
    let unsent = Arc::new(UnsentChunks::default());
    let chunks = unsent.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        let unsent = match request.version() {
            Version::HTTP_2 => {
                phase.without_phases();
                Some(chunks.clone())
            }
            _ => {
                phase.answering();
                None
            }
        };
        if client != Client::Anonymous {
            request.extensions_mut().insert(client.clone());
        }
        if let Some(peer) = peer {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        let span = call_span::of_request(protocol, &request);
        let answer = span.in_scope(|| routes.clone().call(request));
        let phase = phase.clone();
        async move {
            let answer = answer.instrument(span.clone()).await;
            if let Ok(answer) = &answer {
                call_span::record_status(&span, answer.status());
            }
            if phase.has_phases() {
                phase.idle();
            }
            Ok::<_, Infallible>(match answer {
                Ok(answer) => answer.map(|body| CountedBody::new(body, unsent)),
                Err(never) => match never {},
            })
        }
    });
    let mut requests = ConnectionRequests::default();
    let builder = builder(versions, &limits, requests.executor());
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ends = async move {
        // An error means that the sender is gone, which is an end as well.
        let _ = end.wait_for(|end| *end).await;
    };
    let serving = async {
        let ended = tokio::select! {
            // First read the bytes that have arrived.
            biased;
            ended = requests.run(served.as_mut()) => Some(ended),
            () = ends => None,
        };
        match ended {
            Some(ended) => ended,
            None => {
                served.as_mut().graceful_shutdown();
                requests.run(served).await
            }
        }
    };
    tokio::select! {
        biased;
        ended = serving => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended with an error");
            }
        }
        () = overdue(&unsent, limits.idle_timeout) => {
            metrics::counter!("limiter_server_closed_connections_total", "reason" => "unread_response").increment(1);
        }
    }
    drop(permit);
}

/// Waits until the peer has not accepted a part of a response for an interval.
async fn overdue(unsent: &UnsentChunks, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        if unsent.begin_interval() {
            return;
        }
    }
}
