//! Each layer of this crate compiles and works outside and inside the common layers of tower and
//! tower-http, on axum and tonic.
#![cfg(all(feature = "axum", feature = "tonic"))]
#![expect(clippy::unwrap_used, reason = "a test ends that way")]
#![recursion_limit = "256"]

use std::time::Duration;

use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::routing::get;
use http::{HeaderName, HeaderValue, Request, StatusCode, header};
use limiter_core::{Limiter, Policy};
use limiter_tower::typestate::WithKey;
use limiter_tower::{
    BoxConcurrencyLimitLayer, BoxRateLimitLayer, ConcurrencyLimitLayer, LoadShedLayer, Priority,
    RateLimitLayer, SameBodyLayer, key, skip,
};
use tonic::service::Routes;
use tonic::transport::Server;
use tower::buffer::BufferLayer;
use tower::filter::{AsyncFilterLayer, FilterLayer};
use tower::limit::{
    ConcurrencyLimitLayer as TowerConcurrencyLimitLayer, GlobalConcurrencyLimitLayer,
    RateLimitLayer as TowerRateLimitLayer,
};
use tower::load_shed::LoadShedLayer as TowerLoadShedLayer;
use tower::spawn_ready::SpawnReadyLayer;
use tower::timeout::TimeoutLayer as TowerTimeoutLayer;
use tower::util::{
    AndThenLayer, BoxCloneSyncServiceLayer, MapErrLayer, MapRequestLayer, MapResponseLayer, option_layer,
};
use tower::{BoxError, Layer, ServiceExt};
use tower_http::add_extension::AddExtensionLayer;
use tower_http::auth::AddAuthorizationLayer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::csrf::CsrfLayer;
use tower_http::decompression::{DecompressionLayer, RequestDecompressionLayer};
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::map_request_body::MapRequestBodyLayer;
use tower_http::map_response_body::MapResponseBodyLayer;
use tower_http::metrics::InFlightRequestsLayer;
use tower_http::normalize_path::NormalizePathLayer;
use tower_http::propagate_header::PropagateHeaderLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::sensitive_headers::SetSensitiveHeadersLayer;
use tower_http::set_header::{SetRequestHeaderLayer, SetResponseHeaderLayer};
use tower_http::set_status::SetStatusLayer;
use tower_http::timeout::{RequestBodyTimeoutLayer, ResponseBodyTimeoutLayer, TimeoutLayer};
use tower_http::trace::TraceLayer;

const MINUTE: Duration = Duration::from_secs(60);

async fn internal_error(_: BoxError) -> StatusCode {
    StatusCode::INTERNAL_SERVER_ERROR
}

/// The layers in the order outermost first, around an axum router that answers one request.
macro_rules! on_axum {
    ($name:expr, $($layer:expr),+) => {{
        let app: Router = Router::new().route("/", get(async || "found")).layer((
            HandleErrorLayer::new(internal_error),
            MapErrLayer::new(Into::<BoxError>::into),
            $($layer),+
        ));
        let request = Request::get("/").header("x-api-key", "ann").body(axum::body::Body::empty());
        assert_eq!(app.oneshot(request.unwrap()).await.unwrap().status(), 200, "{}", $name);
    }};
}

/// The layers around a tonic server. Only the compiler checks them.
macro_rules! on_tonic {
    ($name:expr, $($layer:expr),+) => {{
        let server = Server::builder().layer(($($layer),+)).add_routes(Routes::default());
        drop(server.serve(([127, 0, 0, 1], 0).into()));
    }};
}

/// One of this crate's layers outside and inside each of the others, on a server.
macro_rules! combine {
    ($server:ident, $ours:expr, [$($theirs:expr),+ $(,)?]) => {$(
        $server!(concat!(stringify!($ours), " outside ", stringify!($theirs)), $ours, $theirs);
        $server!(concat!(stringify!($ours), " inside ", stringify!($theirs)), $theirs, $ours);
    )+};
}

macro_rules! combine_all {
    ($server:ident, $body:ty, $ours:expr) => {{
        combine!(
            $server,
            $ours,
            [
                CorsLayer::permissive(),
                CsrfLayer::new(),
                TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, MINUTE),
                ResponseBodyTimeoutLayer::new(MINUTE),
                RequestBodyTimeoutLayer::new(MINUTE),
                TraceLayer::new_for_http(),
                TraceLayer::new_for_grpc(),
                CompressionLayer::new(),
                DecompressionLayer::new(),
                RequestDecompressionLayer::new(),
                RequestBodyLimitLayer::new(4_096),
                CatchPanicLayer::new(),
                SetRequestHeaderLayer::overriding(header::ACCEPT, HeaderValue::from_static("*/*")),
                SetResponseHeaderLayer::if_not_present(header::SERVER, HeaderValue::from_static("test")),
                PropagateHeaderLayer::new(HeaderName::from_static("x-trace")),
                SetRequestIdLayer::x_request_id(MakeRequestUuid),
                PropagateRequestIdLayer::x_request_id(),
                SetSensitiveHeadersLayer::new([header::AUTHORIZATION]),
                SetStatusLayer::new(StatusCode::OK),
                AddExtensionLayer::new(7_u32),
                AddAuthorizationLayer::bearer("token"),
                NormalizePathLayer::trim_trailing_slash(),
                InFlightRequestsLayer::new(Default::default()),
                MapRequestBodyLayer::new(|body: _| body),
                MapResponseBodyLayer::new(<$body>::new),
                TowerTimeoutLayer::new(MINUTE),
                TowerConcurrencyLimitLayer::new(10),
                GlobalConcurrencyLimitLayer::new(10),
                TowerLoadShedLayer::new(),
                (BufferLayer::new(10), SpawnReadyLayer::new()),
                BufferLayer::new(10),
                (BufferLayer::new(10), TowerRateLimitLayer::new(10, MINUTE)),
                FilterLayer::new(|request: Request<_>| Ok::<_, BoxError>(request)),
                AsyncFilterLayer::new(async |request: Request<_>| Ok::<_, BoxError>(request)),
                MapErrLayer::new(|error: _| error),
                MapRequestLayer::new(|request: Request<_>| request),
                MapResponseLayer::new(|response: http::Response<_>| response),
                AndThenLayer::new(|response: http::Response<_>| std::future::ready(Ok::<
                    _,
                    std::convert::Infallible,
                >(
                    response
                ))),
                option_layer(None::<CorsLayer>),
                option_layer(Some(SetStatusLayer::new(StatusCode::OK))),
            ]
        );
    }};
}

fn limits() -> Limiter {
    Limiter::in_process().build()
}

fn bucket() -> Policy {
    Policy::token_bucket("api")
        .capacity(20)
        .rate("10/s")
        .build()
        .unwrap()
}

fn rate() -> RateLimitLayer<WithKey<key::Header>> {
    RateLimitLayer::new(&limits(), bucket()).key(key::header("x-api-key"))
}

fn in_flight() -> ConcurrencyLimitLayer<WithKey<key::Header>> {
    let policy = Policy::concurrency("flight").max(20).build().unwrap();
    ConcurrencyLimitLayer::new(&limits(), policy).key(key::header("x-api-key"))
}

fn shed() -> LoadShedLayer {
    LoadShedLayer::new(20).reserve_for(Priority::High, 1)
}

/// The state of an application. Its type names no closure and no extractor.
#[derive(Clone)]
struct AppState<B> {
    rate: BoxRateLimitLayer<B>,
    in_flight: BoxConcurrencyLimitLayer<B>,
}

impl<B: 'static> AppState<B> {
    fn new() -> Self {
        let rate = RateLimitLayer::new(&limits(), bucket());
        let by_key = |request: &Request<B>| request.headers()["x-api-key"].to_str().unwrap().to_owned();
        Self {
            rate: rate.key(by_key).skip(skip::probes()).boxed(),
            in_flight: in_flight().skip(skip::probes()).boxed(),
        }
    }
}

/// Type-checked, and not instantiated: the machine code of all combinations would take a minute to
/// generate.
#[expect(
    dead_code,
    clippy::extra_unused_type_parameters,
    reason = "the compiler checks it"
)]
async fn each_layer_combines_with_common_layers<NotInstantiated>() {
    combine_all!(on_axum, axum::body::Body, rate());
    combine_all!(on_axum, axum::body::Body, in_flight());
    combine_all!(on_axum, axum::body::Body, shed());
    combine_all!(on_tonic, tonic::body::Body, rate());
    combine_all!(on_tonic, tonic::body::Body, in_flight());
    combine_all!(on_tonic, tonic::body::Body, shed());
}

#[tokio::test]
async fn all_layers_serve_inside_and_outside_common_layers() {
    on_axum!(
        "outside",
        shed(),
        in_flight(),
        rate(),
        TraceLayer::new_for_http(),
        CorsLayer::permissive(),
        TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, MINUTE),
        RequestBodyLimitLayer::new(4_096),
        CatchPanicLayer::new(),
        CompressionLayer::new()
    );
    on_axum!(
        "inside",
        TraceLayer::new_for_http(),
        CorsLayer::permissive(),
        TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, MINUTE),
        RequestBodyLimitLayer::new(4_096),
        CatchPanicLayer::new(),
        CompressionLayer::new(),
        shed(),
        in_flight(),
        rate()
    );
}

#[tokio::test]
async fn option_layer_applies_and_omits_each_layer() {
    for enabled in [true, false] {
        on_axum!(
            enabled,
            option_layer(enabled.then(|| SameBodyLayer::new(shed()))),
            option_layer(enabled.then(|| SameBodyLayer::new(in_flight()))),
            option_layer(enabled.then(|| SameBodyLayer::new(rate())))
        );
        on_tonic!(
            enabled,
            option_layer(enabled.then(|| SameBodyLayer::new(shed()))),
            option_layer(enabled.then(|| SameBodyLayer::new(in_flight()))),
            option_layer(enabled.then(|| SameBodyLayer::new(rate())))
        );
    }
}

#[tokio::test]
async fn boxed_layers_are_fields_of_an_application_state() {
    let state = AppState::<axum::body::Body>::new();
    on_axum!("boxed", state.in_flight.clone(), state.rate.clone());
    let state = AppState::<tonic::body::Body>::new();
    on_tonic!("boxed", state.in_flight.clone(), state.rate.clone());
}

/// tower's boxes of services and of layers, around and inside each layer.
#[tokio::test]
async fn layers_combine_with_boxed_services_and_layers() {
    use axum::body::Body;
    type Boxed = BoxCloneSyncServiceLayer<
        axum::routing::Route,
        Request<Body>,
        http::Response<Body>,
        std::convert::Infallible,
    >;
    for layer in [
        Boxed::new(SameBodyLayer::new(rate())),
        Boxed::new(SameBodyLayer::new(in_flight())),
        Boxed::new(SameBodyLayer::new(shed())),
    ] {
        on_axum!("boxed layer", AddExtensionLayer::new(7_u32), layer);
    }
    let answer = tower::service_fn(async |_: Request<Body>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
    });
    let service = rate().layer(answer.boxed_clone()).boxed_clone();
    let service = in_flight().layer(service).boxed_clone();
    let service = shed().layer(service).boxed_clone();
    let request = Request::get("/").header("x-api-key", "ann").body(Body::empty());
    assert_eq!(service.oneshot(request.unwrap()).await.unwrap().status(), 200);
}
