//! Requests through a layer, to a service that answers at once.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{Ready, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::{Route, get};
use axum::{BoxError, Router};
use axum_governor::extractor::Header;
use axum_governor::{GovernorConfigBuilder, GovernorLayer};
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, StatusCode};
use limiter_core::Limiter;
use limiter_tower::{RateLimitHeaders, RateLimitLayer, ResponseConfig, key};
use tower::layer::util::Identity;
use tower::{Layer, Service, service_fn};
use tower_governor::errors::GovernorError;
use tower_governor::key_extractor::KeyExtractor;

use super::spin::spin;
use super::{AMPLE, App, Pace};
use crate::contender::{Contender, Mode, governor_quota, policy};
use crate::keys;
use crate::sample::Sample;

/// As many clients as there are headers, made in advance.
const CLIENTS: usize = 1_000;
static API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// `with_headers`: whether responses to allowed requests have the contender's rate limit headers.
pub(super) fn turn(app: App, with_headers: bool, contender: Contender, pace: Pace) -> Sample {
    match contender {
        Contender::Bare => requests(app, Identity::new(), pace),
        Contender::Ours => {
            let limits = Limiter::in_process().build();
            let dialect = if with_headers {
                RateLimitHeaders::default()
            } else {
                RateLimitHeaders::None
            };
            let layer = RateLimitLayer::new(&limits, policy("layer", AMPLE, Mode::Bucket))
                .key(key::header("x-api-key"))
                .responses(&ResponseConfig::new().headers(dialect));
            requests(app, layer, pace)
        }
        Contender::TowerGovernor => {
            let mut settings = tower_governor::governor::GovernorConfigBuilder::default();
            let mut settings = settings
                .per_second(AMPLE.seconds / u64::from(AMPLE.permits))
                .burst_size(AMPLE.permits)
                .key_extractor(ApiKey);
            let valid = "the settings are valid";
            if with_headers {
                let config = Arc::new(settings.use_headers().finish().expect(valid));
                requests(app, tower_governor::GovernorLayer::new(config), pace)
            } else {
                let config = Arc::new(settings.finish().expect(valid));
                requests(app, tower_governor::GovernorLayer::new(config), pace)
            }
        }
        Contender::AxumGovernor => {
            // Its sweeps would need a runtime, and have nothing to find in so short a time.
            let config = GovernorConfigBuilder::default()
                .with_extractor(Header(&API_KEY))
                .quota_default(governor_quota(AMPLE).into())
                .gc_disable()
                .finish()
                .expect("the settings are valid");
            requests(app, GovernorLayer::new(config), pace)
        }
        other => panic!("{} is no layer", other.name()),
    }
}

/// A key extractor for `tower_governor`, which has none for headers.
#[derive(Clone, Debug)]
struct ApiKey;

impl KeyExtractor for ApiKey {
    type Key = String;

    fn extract<T>(&self, request: &http::Request<T>) -> Result<String, GovernorError> {
        let value = request
            .headers()
            .get(&API_KEY)
            .and_then(|value| value.to_str().ok());
        value.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}

type Function = tower::util::ServiceFn<fn(Request) -> Ready<Result<Response, Infallible>>>;

/// Something that is a layer of either app.
fn requests<L>(app: App, layer: L, pace: Pace) -> Sample
where
    L: Layer<Function> + Layer<Route> + Clone + Send + Sync + 'static,
    <L as Layer<Function>>::Service: Answers,
    <L as Layer<Route>>::Service:
        Service<Request, Response: IntoResponse, Error: Into<Infallible>, Future: Send> + Clone + Send + Sync,
{
    match app {
        App::Function => {
            let empty: fn(Request) -> _ = |_| ready(Ok(Response::new(Body::empty())));
            answered(|| layer.layer(service_fn(empty)), pace)
        }
        App::Axum => answered(
            || {
                let app = Router::new().route("/", get(async || "Hello, World!"));
                app.layer(layer.clone()).with_state(())
            },
            pace,
        ),
    }
}

/// A service for requests, with any body type.
trait Answers {
    fn answer(&mut self, request: Request) -> StatusCode;
}

impl<S, B> Answers for S
where
    S: Service<Request, Response = http::Response<B>, Error: Debug>,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>>,
{
    fn answer(&mut self, request: Request) -> StatusCode {
        let mut context = Context::from_waker(Waker::noop());
        assert!(
            self.poll_ready(&mut context).is_ready(),
            "the service is always ready"
        );
        let Poll::Ready(response) = pin!(self.call(request)).poll(&mut context) else {
            unreachable!("in process, a decision is ready at once");
        };
        let (head, body) = response.expect("the service answers").into_parts();
        // As a server that sends it does.
        let mut body = pin!(body);
        while !body.is_end_stream()
            && let Poll::Ready(Some(frame)) = Pin::as_mut(&mut body).poll_frame(&mut context)
        {
            assert!(frame.is_ok(), "the body is whole");
        }
        head.status
    }
}

fn answered<S: Answers>(service: impl Fn() -> S + Sync, pace: Pace) -> Sample {
    let header = |client| HeaderValue::from_str(&keys::name(client)).expect("a name is a valid header");
    let headers: Vec<HeaderValue> = (0..CLIENTS).map(header).collect();
    spin(CLIENTS, 1, pace, || {
        let mut service = service();
        let headers = &headers;
        move |client: usize| {
            let mut request = Request::new(Body::empty());
            let sent = request.headers_mut();
            // The headers of curl.
            sent.insert(HOST, HeaderValue::from_static("localhost:3000"));
            sent.insert(USER_AGENT, HeaderValue::from_static("curl/7.88.1"));
            sent.insert(ACCEPT, HeaderValue::from_static("*/*"));
            sent.insert(&API_KEY, headers[client].clone());
            service.answer(request) == StatusCode::OK
        }
    })
}
