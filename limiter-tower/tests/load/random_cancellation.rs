//! Requests through all layers, dropped at random times: nothing leaks, and each request is charged
//! its cost.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use limiter_core::{Limiter, ManualClock, Policy};
use limiter_tower::settlement::ActualCost;
use limiter_tower::{ConcurrencyLimitLayer, LoadShedLayer, RateLimitLayer, RequestLimits, key};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceBuilder, ServiceExt};

use super::support::request;
use super::{at_once, poll_once, remaining};

const SECOND: Duration = Duration::from_secs(1);
const ESTIMATE: u64 = 7;
const QUOTA: u64 = 1_000_000;

/// The behaviour of the inner service for a request, and whether the request passed the rate limit.
#[derive(Clone, Debug, Default)]
struct Plan {
    admitted: Arc<AtomicBool>,
    yields: u64,
    frames: u64,
    fails: bool,
    breaks_off: bool,
}

impl Plan {
    fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::SeqCst)
    }
}

/// A body with frames of four bytes; each frame is pending once.
#[derive(Debug)]
struct Slow {
    plan: Plan,
    is_due: bool,
}

impl Body for Slow {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.is_due = !self.is_due;
        if self.is_due {
            return Poll::Pending;
        }
        Poll::Ready(match self.plan.frames.checked_sub(1) {
            Some(left) => {
                self.plan.frames = left;
                Some(Ok(Frame::data(Bytes::from_static(b"four"))))
            }
            None => self.plan.breaks_off.then_some(Err("broken off")),
        })
    }
}

async fn serve(request: Request<String>) -> Result<Response<Slow>, &'static str> {
    let plan = request.extensions().get::<Plan>().unwrap().clone();
    for _ in 0..plan.yields {
        tokio::task::yield_now().await;
    }
    let is_due = false;
    if plan.fails {
        Err("fails")
    } else {
        Ok(Response::new(Slow { plan, is_due }))
    }
}

type AnyBody = http_body_util::combinators::UnsyncBoxBody<Bytes, &'static str>;
type Called = Pin<Box<dyn Future<Output = Result<Response<AnyBody>, &'static str>> + Send>>;

/// The stage of a request.
enum Stage {
    Called(Called),
    Answered { body: Pin<Box<AnyBody>>, bytes: u64 },
    Ended { charged: u64 },
}

impl Stage {
    /// Polls it once.
    fn go_on(&mut self, plan: &Plan) {
        let context = &mut Context::from_waker(Waker::noop());
        let next = match self {
            Self::Called(called) => match called.as_mut().poll(context) {
                Poll::Pending => return,
                Poll::Ready(Ok(response)) => Self::Answered {
                    body: Box::pin(response.into_body()),
                    bytes: 0,
                },
                Poll::Ready(Err(_)) => Self::Ended {
                    charged: if plan.is_admitted() { ESTIMATE } else { 0 },
                },
            },
            Self::Answered { body, bytes } => match body.as_mut().poll_frame(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(frame))) => {
                    *bytes += frame.data_ref().map_or(0, |data| data.len().try_into().unwrap());
                    return;
                }
                Poll::Ready(None | Some(Err(_))) => Self::Ended {
                    charged: self.charged(plan),
                },
            },
            Self::Ended { .. } => return,
        };
        *self = next;
    }

    /// The charge of a request that is dropped now.
    fn charged(&self, plan: &Plan) -> u64 {
        match self {
            Self::Called(_) if plan.is_admitted() => ESTIMATE,
            Self::Answered { bytes, .. } if plan.is_admitted() => *bytes,
            Self::Called(_) | Self::Answered { .. } => 0,
            Self::Ended { charged } => *charged,
        }
    }
}

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    fn millis(&mut self, bound: usize) -> Duration {
        Duration::from_millis(self.below(bound).try_into().unwrap())
    }

    fn request(&mut self) -> (Plan, Request<String>) {
        let plan = Plan {
            admitted: Arc::default(),
            yields: self.below(3).try_into().unwrap(),
            frames: self.below(4).try_into().unwrap(),
            fails: self.below(8) == 0,
            breaks_off: self.below(4) == 0,
        };
        let mut request = request("ann");
        request.extensions_mut().insert(plan.clone());
        if let Some(timeout) = ["0n", "500m", "1S"].get(self.below(12)) {
            let timeout = timeout.parse().unwrap();
            request.headers_mut().insert("grpc-timeout", timeout);
        }
        (plan, request)
    }
}

#[tokio::test]
async fn dropped_requests_leak_nothing_and_are_charged_exactly() {
    let clock = ManualClock::new();
    let limits = Limiter::in_process()
        .clock(&clock)
        .max_waiting(4)
        .max_keys(9)
        .build();
    let bytes = Policy::fixed_window("bytes")
        .limit(QUOTA)
        .window("1000d")
        .build()
        .unwrap();
    let calls = Policy::token_bucket("calls")
        .capacity(2)
        .rate("1/s")
        .build()
        .unwrap();
    let shed = LoadShedLayer::new(5);
    let terms = [bytes.clone(), calls.clone()];
    let hook = move |_: &Request<String>| {
        let [bytes, calls] = &terms;
        RequestLimits::new(calls, "ann")
            .unsettled()
            .and(RequestLimits::new(bytes, "ann").cost(7))
    };
    let later = key::from_async(async |_| {
        tokio::task::yield_now().await;
        "ann"
    });
    let rates = RateLimitLayer::limits_for(&limits, hook).max_wait(5 * SECOND);
    let service = ServiceBuilder::new()
        .map_response(|response: Response<_>| response.map(http_body_util::BodyExt::boxed_unsync))
        .layer(shed.clone())
        .layer(rates.max_waiting(2).settle(ActualCost::body_bytes()))
        .map_request(|request: Request<String>| {
            let plan = request.extensions().get::<Plan>().unwrap();
            plan.admitted.store(true, Ordering::SeqCst);
            request
        })
        .layer(
            ConcurrencyLimitLayer::new(&limits, at_once(2))
                .key(later)
                .max_wait(3 * SECOND)
                .with_permit_extension(),
        )
        .service_fn(serve);
    let service = BoxCloneSyncService::new(service);

    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut expected = 0;
    for round in 0..300 {
        let mut flying: Vec<(Plan, Stage)> = Vec::new();
        let charged = |(plan, stage): (Plan, Stage)| stage.charged(&plan);
        for _ in 0..random.below(60) {
            match (random.below(10), flying.len()) {
                (0 | 1, _) => {
                    let (plan, request) = random.request();
                    let mut service = service.clone();
                    assert!(poll_once(Box::pin(service.ready()).as_mut()).is_ready());
                    flying.push((plan, Stage::Called(service.call(request))));
                }
                (2, _) => clock.advance(random.millis(2_500)),
                (3, _) => tokio::task::yield_now().await,
                (_, 0) => {}
                (4, among) => expected += charged(flying.swap_remove(random.below(among))),
                (_, among) => {
                    let (plan, stage) = flying.get_mut(random.below(among)).unwrap();
                    tokio::task::unconstrained(async { stage.go_on(plan) }).await;
                }
            }
        }
        expected += flying.into_iter().map(charged).sum::<u64>();

        assert_eq!(shed.in_flight(), 0, "places, {round}");
        assert_eq!(
            remaining(&limits, &at_once(2), "ann").await,
            2,
            "permits, {round}"
        );
        assert_eq!(
            QUOTA - remaining(&limits, &bytes, "ann").await,
            expected,
            "charges, {round}"
        );
        clock.advance(10 * SECOND);
        assert_eq!(
            remaining(&limits, &calls, "ann").await,
            2,
            "the grants of waiting requests, {round}"
        );
    }
    // The waiting slots are released as well.
    while limits.check(&calls, "ann").await.unwrap().is_allowed() {}
    let mut waiting = Vec::new();
    for place in 0..3 {
        let (_, request) = Random(1).request();
        let mut called = Box::pin(service.clone().oneshot(request));
        assert_eq!(poll_once(called.as_mut()).is_pending(), place < 2, "{place}");
        waiting.push(called);
    }
}
