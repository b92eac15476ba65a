//! Requests through a layer, to a service that answers at once.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum_governor::extractor::Header;
use axum_governor::{GovernorConfigBuilder, GovernorLayer};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use limiter_core::Limiter;
use limiter_tower::{Dialect, RateLimitLayer, key};
use tower::{Layer, Service, service_fn};
use tower_governor::errors::GovernorError;
use tower_governor::key_extractor::KeyExtractor;

use super::spin::spin;
use super::{AMPLE, Pace};
use crate::contender::{Contender, Mode, governor_quota, policy};
use crate::keys;
use crate::sample::Sample;

/// As many clients as there are headers, made in advance.
const CLIENTS: usize = 1_000;
static API_KEY: HeaderName = HeaderName::from_static("x-api-key");

pub(super) fn turn(contender: Contender, pace: Pace) -> Sample {
    match contender {
        Contender::Bare => requests(|service| service, pace),
        Contender::Ours => {
            let limits = Limiter::in_process().build();
            let layer = RateLimitLayer::new(&limits, policy("layer", AMPLE, Mode::Bucket))
                .key(key::header("x-api-key"))
                // As the others, by default, tell an allowed request nothing.
                .headers(Dialect::None);
            requests(|service| layer.layer(service), pace)
        }
        Contender::TowerGovernor => {
            let config = tower_governor::governor::GovernorConfigBuilder::default()
                .per_second(AMPLE.seconds / u64::from(AMPLE.permits))
                .burst_size(AMPLE.permits)
                .key_extractor(ApiKey)
                .finish()
                .expect("the settings are valid");
            let layer = tower_governor::GovernorLayer::new(config);
            requests(|service| layer.layer(service), pace)
        }
        Contender::AxumGovernor => {
            // Its sweeps would need a runtime, and have nothing to find in so short a time.
            let config = GovernorConfigBuilder::default()
                .with_extractor(Header(&API_KEY))
                .quota_default(governor_quota(AMPLE).into())
                .gc_disable()
                .finish()
                .expect("the settings are valid");
            let layer = GovernorLayer::new(config);
            requests(|service| layer.layer(service), pace)
        }
        other => panic!("{} is no layer", other.name()),
    }
}

/// What `tower_governor` finds keys with; it brings nothing for headers.
#[derive(Clone, Debug)]
struct ApiKey;

impl KeyExtractor for ApiKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let value = request
            .headers()
            .get(&API_KEY)
            .and_then(|value| value.to_str().ok());
        value.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}

type Inner = tower::util::ServiceFn<fn(Request<Body>) -> Ready<Result<Response<Body>, Infallible>>>;

fn requests<S, B>(layer: impl Fn(Inner) -> S + Sync, pace: Pace) -> Sample
where
    S: Service<Request<Body>, Response = Response<B>, Error: Debug>,
{
    let header = |client| HeaderValue::from_str(&keys::name(client)).expect("a name is a valid header");
    let headers: Vec<HeaderValue> = (0..CLIENTS).map(header).collect();
    spin(CLIENTS, 1, pace, || {
        let mut service = layer(service_fn(|_| ready(Ok(Response::new(Body::empty())))));
        let headers = &headers;
        move |client: usize| {
            let mut request = Request::new(Body::empty());
            request.headers_mut().insert(&API_KEY, headers[client].clone());
            respond(&mut service, request).status() == StatusCode::OK
        }
    })
}

fn respond<S, B>(service: &mut S, request: Request<Body>) -> Response<B>
where
    S: Service<Request<Body>, Response = Response<B>, Error: Debug>,
{
    let mut context = Context::from_waker(Waker::noop());
    assert!(
        service.poll_ready(&mut context).is_ready(),
        "the service is always ready"
    );
    match pin!(service.call(request)).poll(&mut context) {
        Poll::Ready(response) => response.expect("the service answers"),
        Poll::Pending => unreachable!("in process, a decision is ready at once"),
    }
}
