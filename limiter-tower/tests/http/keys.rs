//! Keys as servers, routers and axum's extractors find them.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{Method, StatusCode};
use limiter_core::{Key, Policy};
use limiter_tower::key::{Extraction, PendingKey};
use limiter_tower::{RateLimitLayer, key, skip};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tower::{Layer, Service, ServiceExt};

use crate::support::{Strict, limiter, one_a_minute, request, text};

/// The status of a response to a request with these header lines, from a server on loopback.
async fn status(address: SocketAddr, headers: &str) -> u16 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn axum_server_provides_peer_address_if_configured() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::new(&limits, one_a_minute());
    let loopback = "127.0.0.0/8".parse().unwrap();
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(
            layer
                .clone()
                .key(key::client_ip(key::TrustedProxies::networks([loopback]))),
        )
        .layer(layer.key((key::peer_ip(), key::header("x-turn"))));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let make_service = app.clone().into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(axum::serve(listener, make_service).into_future());

    assert_eq!(status(address, "x-turn: 1\r\n").await, 200);
    assert_eq!(
        status(address, "x-turn: 1\r\n").await,
        429,
        "another port, the same peer"
    );
    assert_eq!(
        status(address, "x-turn: 2\r\nx-forwarded-for: 192.0.2.1\r\n").await,
        200
    );
    let forged = "x-turn: 3\r\nx-forwarded-for: 203.0.113.9\r\nX-Forwarded-For: 192.0.2.1\r\n";
    assert_eq!(status(address, forged).await, 429);
    server.abort();

    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(axum::serve(listener, app).into_future());
    assert_eq!(
        status(address, "x-turn: 4\r\n").await,
        500,
        "the server provides no address"
    );
    server.abort();
}

#[tokio::test]
async fn mock_connect_info_is_the_peer() {
    let (limits, _clock) = limiter();
    let mocked = axum::extract::connect_info::MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 80)));
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(RateLimitLayer::new(&limits, one_a_minute()).key(key::peer_ip()))
        .layer(mocked);
    for expected in [200, 429] {
        let request = Request::get("/").body(Body::empty()).unwrap();
        assert_eq!(app.clone().oneshot(request).await.unwrap().status(), expected);
    }
}

/// A user that a header names; a request without it receives the place of the login.
struct User(String);

impl FromRequestParts<Arc<str>> for User {
    type Rejection = Response;

    async fn from_request_parts(head: &mut Parts, realm: &Arc<str>) -> Result<Self, Response> {
        // Simulates a lookup in another service.
        tokio::task::yield_now().await;
        let Some(name) = head.headers.get("x-user").and_then(|name| name.to_str().ok()) else {
            let challenge = [("www-authenticate", format!("Bearer realm={realm}"))];
            let body = match &**realm {
                "verbose" => "who? ".repeat(20_000),
                _ => r#"{"error":"who?"}"#.to_owned(),
            };
            return Err((StatusCode::UNAUTHORIZED, challenge, body).into_response());
        };
        Ok(Self(name.to_owned()))
    }
}

#[tokio::test]
async fn axum_extractor_yields_key_and_its_rejection_the_response() {
    let (limits, _clock) = limiter();
    let inner = Strict::default();
    let calls = inner.calls();
    let by_user = key::from_parts(Arc::from("api"), |(method, User(name)): (Method, User)| {
        Key::from("user:").part(name).text(":").part(method)
    });
    let service = RateLimitLayer::new(&limits, one_a_minute())
        .key(by_user)
        .layer(inner);
    let get_status = async |user: Option<&str>, content_type: &str| {
        let mut request = request("");
        let headers = request.headers_mut();
        headers.insert("content-type", content_type.parse().unwrap());
        if let Some(user) = user {
            headers.insert("x-user", user.parse().unwrap());
        }
        service.clone().oneshot(request).await.unwrap()
    };

    assert_eq!(get_status(Some("ann"), "text/plain").await.status(), 200);
    assert_eq!(get_status(Some("ann"), "text/plain").await.status(), 429);
    assert_eq!(get_status(Some("bob"), "text/plain").await.status(), 200);

    let rejected = get_status(None, "application/json").await;
    assert_eq!(rejected.status(), 401);
    assert_eq!(rejected.headers()["www-authenticate"], "Bearer realm=api");
    assert_eq!(text(rejected).await, r#"{"error":"who?"}"#);
    let rejected = get_status(None, "application/grpc").await;
    assert_eq!(rejected.status(), 200);
    assert_eq!(rejected.headers()["grpc-status"], "16");
    assert_eq!(
        rejected.headers()["grpc-message"],
        r#"{"error":"who?"}"#,
        "axum calls it text/plain"
    );
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// A response with status 401 has to contain the challenge.
#[tokio::test]
async fn rejection_of_axum_extractor_keeps_headers_without_long_body() {
    let (limits, _clock) = limiter();
    let by_user = key::from_parts(Arc::from("verbose"), |User(name)| name);
    let service = RateLimitLayer::new(&limits, one_a_minute())
        .key(by_user)
        .layer(Strict::default());
    let rejected = service.oneshot(request("")).await.unwrap();
    assert_eq!(rejected.status(), 401);
    assert_eq!(
        rejected.headers().get("www-authenticate").unwrap(),
        "Bearer realm=verbose"
    );
    assert_eq!(text(rejected).await, "");
}

#[tokio::test]
async fn pending_key_is_awaited_and_not_charged_before() {
    let (limits, _clock) = limiter();
    let (send, receive) = oneshot::channel::<&'static str>();
    let receive = Arc::new(tokio::sync::Mutex::new(Some(receive)));
    let by_message = key::from_async(move |_| {
        let receive = Arc::clone(&receive);
        // Pending twice: one wait can be followed by another.
        PendingKey::new(async move {
            Extraction::Pending(PendingKey::new(async move {
                match receive.lock().await.take() {
                    Some(receive) => Extraction::Key(Key::from(receive.await.unwrap())),
                    None => Extraction::Key(Key::from("ann")),
                }
            }))
        })
    });
    let inner = Strict::default();
    let calls = inner.calls();
    let called = || calls.load(Ordering::SeqCst);
    let mut service = RateLimitLayer::new(&limits, one_a_minute())
        .key(by_message)
        .layer(inner);

    let mut waiting = pin!(service.ready().await.unwrap().call(request("")));
    let first = std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
    assert!(first.is_pending());
    drop(service.ready().await.unwrap().call(request("")));
    assert_eq!(called(), 0, "dropped unpolled, it is not charged");
    send.send("ann").unwrap();
    assert_eq!(waiting.await.unwrap().status(), 200);
    assert_eq!(called(), 1);
    assert_eq!(
        service
            .ready()
            .await
            .unwrap()
            .call(request(""))
            .await
            .unwrap()
            .status(),
        429
    );
    assert_eq!(called(), 1);
}

#[tokio::test]
async fn pending_extraction_can_skip_or_reject() {
    let (limits, _clock) = limiter();
    let by_user = key::from_async(async |head: Parts| match head.headers.get("x-api-key") {
        Some(key) if key == "probe" => Extraction::Skip,
        Some(key) => Extraction::Key(Key::from(key.as_bytes()).into_owned()),
        None => Extraction::Reject(StatusCode::FORBIDDEN.into()),
    });
    let service = RateLimitLayer::new(&limits, one_a_minute())
        .key(by_user)
        .layer(Strict::default());
    let get_status = async |request| service.clone().oneshot(request).await.unwrap().status();
    for expected in [200, 200] {
        assert_eq!(get_status(request("probe")).await, expected);
    }
    for expected in [200, 429] {
        assert_eq!(get_status(request("ann")).await, expected);
    }
    assert_eq!(get_status(http::Request::new(String::new())).await, 403);
}

#[tokio::test]
async fn skipped_request_needs_no_key_and_is_not_counted() {
    let (limits, _clock) = limiter();
    let app = Router::new()
        .route("/healthz", get(async || "well").post(async || "done"))
        .route("/", get(async || "hello"))
        .layer(
            RateLimitLayer::new(&limits, one_a_minute())
                .key((key::header("x-api-key").or_reject(401), key::global()))
                .skip(skip::probes())
                .skip(|request: &Request| request.headers().contains_key("x-internal")),
        );
    let get_status = async |method: Method, path: &str, header: &str| {
        let request = Request::builder().method(method).uri(path).header(header, "ann");
        let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await;
        response.unwrap().status()
    };
    for _ in 0..3 {
        assert_eq!(get_status(Method::GET, "/healthz", "x-none").await, 200);
        assert_eq!(get_status(Method::HEAD, "/healthz?full", "x-none").await, 200);
        assert_eq!(get_status(Method::GET, "/", "x-internal").await, 200);
    }
    assert_eq!(get_status(Method::POST, "/healthz", "x-none").await, 401);
    assert_eq!(get_status(Method::GET, "/healthz/", "x-none").await, 401);
    assert_eq!(get_status(Method::GET, "//healthz", "x-none").await, 401);
    assert_eq!(get_status(Method::GET, "/", "x-api-key").await, 200);
    assert_eq!(get_status(Method::GET, "/", "x-api-key").await, 429);
}

#[tokio::test]
async fn route_has_one_budget_for_all_parameters() {
    let (limits, _clock) = limiter();
    let by_route = || RateLimitLayer::new(&limits, one_a_minute()).key(key::matched_path());
    let routes = Router::new().route("/users/{id}", get(async || "user"));
    let app = Router::new()
        .nest("/v1", routes.clone().route_layer(by_route()))
        .nest("/v2", routes.route_layer(by_route()));
    let get_status = async |app: &Router, path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(get_status(&app, "/v1/users/1").await, 200);
    assert_eq!(get_status(&app, "/v1/users/2").await, 429);
    assert_eq!(
        get_status(&app, "/v2/users/1").await,
        200,
        "the same handler nested elsewhere is another route"
    );
    assert_eq!(get_status(&app, "/v2/users/1").await, 429);

    let around = by_route().layer(app.clone());
    let request = Request::get("/v1/users/1").body(Body::empty()).unwrap();
    assert_eq!(
        around.oneshot(request).await.unwrap().status(),
        404,
        "no route is matched yet"
    );
    let around = RateLimitLayer::new(&limits, one_a_minute())
        .key(key::matched_path().or_skip())
        .layer(app);
    let request = Request::get("/v1/users/1").body(Body::empty()).unwrap();
    assert_eq!(
        around.oneshot(request).await.unwrap().status(),
        429,
        "the inner layer denies"
    );
}

#[tokio::test]
async fn key_list_matches_clients_by_network() {
    let (limits, _clock) = limiter();
    let policy = Policy::token_bucket("api").capacity(100).rate(1);
    let policy = policy
        .deny_keys(["2001:db8:bad::/48", "192.0.2.0/24", "198.51.100.9"])
        .build()
        .unwrap();
    let status = async |layer: RateLimitLayer<_>, peer: &str| {
        let mut request = request("ann");
        let peer = SocketAddr::new(peer.parse().unwrap(), 49_152);
        request.extensions_mut().insert(peer);
        layer
            .layer(Strict::default())
            .oneshot(request)
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    let layer = |bits| RateLimitLayer::new(&limits, policy.clone()).key(key::peer_ip().ipv4_prefix(bits));
    for (bits, peer, expected) in [
        (32, "2001:db8:bad:7::1", 403),
        (32, "2001:db8:bae::1", 200),
        (32, "192.0.2.7", 403),
        (24, "192.0.2.7", 403),
        (23, "192.0.2.7", 200),
        (32, "198.51.100.9", 403),
        (24, "198.51.100.9", 200),
    ] {
        assert_eq!(status(layer(bits), peer).await, expected, "{peer} by /{bits}");
    }
}
