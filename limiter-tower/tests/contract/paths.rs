//! All paths through the layer, for all behaviours of the inner service: the service is called
//! ready or not at all, its errors and panics are passed on, and its reserved slot is released
//! afterwards.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::StreamBody;
use limiter_core::{Limiter, ManualClock, Policy};
use limiter_tower::key::{self, Extraction, KeyRejection};
use limiter_tower::outbound::BoxError;
use limiter_tower::settlement::{ActualCost, ReportedCost};
use limiter_tower::typestate::HasKey;
use limiter_tower::{RateLimitLayer, RequestLimits, ResponseBody, ResponseConfig};
use tower::limit::ConcurrencyLimitLayer;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceBuilder, ServiceExt};

const SECOND: Duration = Duration::from_secs(1);

type Frames = std::vec::IntoIter<Result<Frame<Bytes>, &'static str>>;
type Stream = StreamBody<tokio_stream::Iter<Frames>>;

/// The behaviour of the inner service, or of the layer's closures, for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    ResponseConfig,
    Fails,
    /// Panics in `call`.
    Panics,
    /// In its future.
    PanicsLater,
    /// In the middle of its body.
    BreaksOff,
    /// A closure of the layer panics, on paths that have one.
    ClosurePanics,
}

const MOODS: [Mood; 6] = [
    Mood::ResponseConfig,
    Mood::Fails,
    Mood::Panics,
    Mood::PanicsLater,
    Mood::BreaksOff,
    Mood::ClosurePanics,
];

/// Asserts that it is ready, and behaves as the request states.
#[derive(Debug, Default)]
struct Moody {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for Moody {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            calls: Arc::clone(&self.calls),
        }
    }
}

impl Service<Request<String>> for Moody {
    type Response = Response<Stream>;
    type Error = &'static str;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Stream>, &'static str>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mood = mood_of(&request);
        assert_ne!(mood, Mood::Panics, "panic that the request states");
        Box::pin(async move {
            tokio::task::yield_now().await;
            assert_ne!(mood, Mood::PanicsLater, "panic that the request states");
            if mood == Mood::Fails {
                return Err("broken");
            }
            let data = || Ok(Frame::data(Bytes::from_static(b"four")));
            let last = if mood == Mood::BreaksOff {
                Err("broken off")
            } else {
                data()
            };
            let frames = vec![data(), data(), last];
            let mut response = Response::new(StreamBody::new(tokio_stream::iter(frames)));
            response.extensions_mut().insert(ReportedCost::new(5));
            response.extensions_mut().insert(mood);
            Ok(response)
        })
    }
}

fn mood_of<B>(request: &Request<B>) -> Mood {
    *request.extensions().get().unwrap()
}

/// For closures of the layer over a request.
fn may_panic<B>(request: &Request<B>) {
    assert_ne!(
        mood_of(request),
        Mood::ClosurePanics,
        "panic that the request states"
    );
}

/// And over a response.
fn may_panic_then(response: &Response<()>) {
    let mood = response.extensions().get::<Mood>();
    assert_ne!(mood, Some(&Mood::ClosurePanics), "panic that the request states");
}

type Inbound = BoxCloneSyncService<Request<String>, Response<ResponseBody<Stream>>, &'static str>;
type Outbound = BoxCloneSyncService<Request<String>, Response<Stream>, BoxError>;

/// One way through the layer.
struct Way<S> {
    name: &'static str,
    service: S,
    /// The status of a response by the layer; 200 for a request that reaches the inner service.
    status: u16,
    calls: Arc<AtomicUsize>,
}

fn bucket(capacity: u32) -> Policy {
    let policy = Policy::token_bucket(format!("of-{capacity}"));
    policy.capacity(capacity).rate("1/s").build().unwrap()
}

/// Takes the permit of a bucket with one permit, so that later requests have to wait.
fn spend(limits: &Limiter) -> Policy {
    let policy = bucket(1);
    let mut check = Box::pin(limits.check(&policy, "ann").into_future());
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(check.as_mut().poll(&mut context).is_ready());
    drop(check);
    policy
}

fn way<K, P>(name: &'static str, status: u16, layer: &RateLimitLayer<K, P>) -> Way<Inbound>
where
    K: HasKey + Clone,
    P: limiter_tower::typestate::RequestOptions<
            K::Extractor,
            Extractor: key::KeyExtractor<String> + Send + Sync + 'static,
        > + Clone,
{
    let inner = Moody::default();
    let calls = Arc::clone(&inner.calls);
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(inner);
    Way {
        name,
        service: BoxCloneSyncService::new(service),
        status,
        calls,
    }
}

async fn ann(head: http::request::Parts) -> &'static str {
    tokio::task::yield_now().await;
    let mood = head.extensions.get::<Mood>();
    assert_ne!(mood, Some(&Mood::ClosurePanics), "panic that the request states");
    "ann"
}

fn ways(limits: &Limiter) -> Vec<Way<Inbound>> {
    let many = bucket(1_000);
    let by_header = || RateLimitLayer::new(limits, &many).key(key::header("x-api-key"));
    let patient = || {
        let layer = RateLimitLayer::new(limits, spend(limits)).key(key::header("x-api-key"));
        layer.max_wait(100 * SECOND)
    };
    let hook = {
        let (many, other) = (many.clone(), bucket(2_000));
        move |request: &Request<String>| {
            may_panic(request);
            RequestLimits::new(&many, "ann").and(RequestLimits::new(&other, "ann").cost(2))
        }
    };
    let tiers = {
        let many = many.clone();
        move |request: &Request<String>| {
            may_panic(request);
            many.clone()
        }
    };
    let once = RateLimitLayer::new(limits, spend(limits));
    vec![
        way("a key at once", 200, &by_header()),
        way(
            "a key without headers",
            200,
            &by_header().responses(&ResponseConfig::new().headers(limiter_tower::RateLimitHeaders::None)),
        ),
        way("decisions shown", 200, &by_header().with_decision_extension()),
        way(
            "a key later",
            200,
            &RateLimitLayer::new(limits, &many).key(key::from_async(ann)),
        ),
        way(
            "a tier later",
            200,
            &RateLimitLayer::new(limits, tiers).key(key::from_async(ann)),
        ),
        way("terms", 200, &RateLimitLayer::limits_for(limits, hook)),
        way(
            "several",
            200,
            &RateLimitLayer::new(limits, [bucket(500), bucket(600)]).key(key::header("x-api-key")),
        ),
        way("a wait", 200, &patient()),
        way(
            "a wait for a key that comes later",
            200,
            &RateLimitLayer::new(limits, spend(limits))
                .key(key::from_async(ann))
                .max_wait(100 * SECOND),
        ),
        way(
            "a wait that is settled",
            200,
            &patient().settle(ActualCost::from_response(|response| {
                may_panic_then(response);
                Some(1)
            })),
        ),
        way(
            "outcomes",
            200,
            &by_header().count_if(|response| {
                may_panic_then(response);
                response.status() == 401
            }),
        ),
        way("bytes", 200, &by_header().settle(ActualCost::body_bytes())),
        way("reported cost", 200, &by_header().settle(ActualCost::reported())),
        way(
            "a cost",
            200,
            &by_header().cost_by(|request: &Request<String>| {
                may_panic(request);
                3
            }),
        ),
        way(
            "skipped",
            200,
            &RateLimitLayer::new(limits, bucket(1))
                .key(key::global())
                .skip(|request: &Request<String>| {
                    may_panic(request);
                    true
                }),
        ),
        way(
            "refused",
            403,
            &RateLimitLayer::new(limits, &many).key(|request: &Request<String>| {
                may_panic(request);
                Extraction::Reject(KeyRejection::new(StatusCode::FORBIDDEN, "closed"))
            }),
        ),
        way(
            "refused later",
            401,
            &RateLimitLayer::new(limits, &many).key(key::from_async(async |_| {
                Err::<String, _>(StatusCode::UNAUTHORIZED)
            })),
        ),
        way("too dear", 429, &by_header().cost(1_001)),
        way(
            "too dear, and later",
            429,
            &RateLimitLayer::new(limits, &many)
                .key(key::from_async(ann))
                .cost(1_001),
        ),
        way("misconfigured", 500, &by_header().cost(-1)),
        way(
            "denied with an own answer",
            429,
            &once
                .key(key::header("x-api-key"))
                .cost(2)
                .responses(&ResponseConfig::new().respond_with(|_, response| response)),
        ),
    ]
}

/// The response, the error or the panic. The connection stays open.
async fn answer<S>(
    service: &S,
    connections: &mut Vec<S>,
    mood: Mood,
    clock: &ManualClock,
) -> Result<Result<S::Response, S::Error>, tokio::task::JoinError>
where
    S: Service<Request<String>, Future: Send, Response: Send, Error: Send> + Clone + Send + 'static,
{
    let mut request = super::request("ann");
    request.extensions_mut().insert(mood);
    let mut connection = service.clone();
    let task = tokio::spawn(async move {
        let answer = match connection.ready().await {
            Ok(ready) => ready.call(request).await,
            Err(error) => Err(error),
        };
        (connection, answer)
    });
    for _ in 0..1_000 {
        if task.is_finished() {
            break;
        }
        tokio::task::yield_now().await;
        clock.advance(SECOND / 10);
    }
    assert!(task.is_finished(), "a slot, or a permit, was never released");
    let (connection, answer) = task.await?;
    connections.push(connection);
    Ok(answer)
}

#[tokio::test]
async fn all_paths_call_ready_service_and_release_slot() {
    let (limits, clock) = super::limiter();
    for way in ways(&limits) {
        let (mut reached, mut connections) = (0, Vec::new());
        for mood in MOODS.into_iter().cycle().take(2 * MOODS.len()) {
            let context = format!("{}, {mood:?}", way.name);
            let answer = answer(&way.service, &mut connections, mood, &clock).await;
            let calls = way.calls.load(Ordering::SeqCst);
            let called = calls - std::mem::replace(&mut reached, calls);
            let reaches = way.status == 200;
            match mood {
                Mood::ClosurePanics if answer.is_err() => assert!(called <= 1, "{context}"),
                Mood::Panics | Mood::PanicsLater if reaches => {
                    assert!(answer.unwrap_err().is_panic(), "{context}");
                    assert_eq!(called, 1, "{context}");
                }
                Mood::Fails if reaches => {
                    assert_eq!(answer.unwrap().err(), Some("broken"), "{context}");
                    assert_eq!(called, 1, "{context}");
                }
                _ => {
                    let response = answer.unwrap().unwrap();
                    assert_eq!(response.status(), way.status, "{context}");
                    assert_eq!(called, usize::from(reaches), "{context}");
                    if reaches {
                        read(response.into_body(), mood).await;
                    }
                }
            }
        }
    }
}

/// Reads the first half of the body, or the complete body.
async fn read(body: ResponseBody<Stream>, mood: Mood) {
    let mut body = pin!(body);
    let mut frame = async || poll_fn(|context| body.as_mut().poll_frame(context)).await;
    assert!(frame().await.unwrap().is_ok());
    if mood == Mood::BreaksOff {
        assert!(frame().await.unwrap().is_ok());
        assert_eq!(frame().await.unwrap().err(), Some("broken off"));
        assert!(frame().await.is_none());
    }
}

fn outbound_ways(limits: &Limiter) -> Vec<Way<Outbound>> {
    fn way<E>(
        name: &'static str,
        status: u16,
        layer: &limiter_tower::outbound::OutboundLayer<E>,
    ) -> Way<Outbound>
    where
        E: key::KeyExtractor<String> + Send + Sync + 'static,
    {
        let inner = Moody::default();
        let calls = Arc::clone(&inner.calls);
        let service = ServiceBuilder::new()
            .layer(layer.clone())
            .layer(ConcurrencyLimitLayer::new(1))
            .map_err(BoxError::from)
            .service(inner);
        Way {
            name,
            service: BoxCloneSyncService::new(service),
            status,
            calls,
        }
    }
    let layer = |policy| RateLimitLayer::outbound(limits, policy).key(key::header("x-api-key"));
    vec![
        way("at once", 200, &layer(bucket(1_000))),
        way("waiting", 200, &layer(spend(limits)).max_wait(100 * SECOND)),
        way("later", 200, &layer(bucket(1_000)).key(key::from_async(ann))),
        way(
            "later and waiting",
            200,
            &layer(spend(limits))
                .key(key::from_async(ann))
                .max_wait(100 * SECOND),
        ),
        way("too dear", 429, &layer(bucket(1)).cost(2)),
        way(
            "too dear, and waiting",
            429,
            &layer(bucket(1)).cost(2).max_wait(SECOND),
        ),
        way(
            "refused",
            403,
            &layer(bucket(1)).key(key::from_async(async |_| Err::<String, _>(StatusCode::FORBIDDEN))),
        ),
    ]
}

#[tokio::test]
async fn outbound_paths_call_ready_service_and_release_slot() {
    let (limits, clock) = super::limiter();
    for way in outbound_ways(&limits) {
        let (mut reached, mut connections) = (0, Vec::new());
        for mood in MOODS.into_iter().cycle().take(2 * MOODS.len()) {
            let context = format!("{}, {mood:?}", way.name);
            let answer = answer(&way.service, &mut connections, mood, &clock).await;
            let calls = way.calls.load(Ordering::SeqCst);
            let called = calls - std::mem::replace(&mut reached, calls);
            let reaches = way.status == 200;
            match mood {
                Mood::ClosurePanics if answer.is_err() => assert_eq!(called, 0, "{context}"),
                Mood::Panics | Mood::PanicsLater if reaches => {
                    assert!(answer.unwrap_err().is_panic(), "{context}");
                    assert_eq!(called, 1, "{context}");
                }
                Mood::Fails if reaches => {
                    assert_eq!(answer.unwrap().unwrap_err().to_string(), "broken", "{context}");
                    assert_eq!(called, 1, "{context}");
                }
                _ => {
                    assert_eq!(answer.unwrap().is_ok(), reaches, "{context}");
                    assert_eq!(called, usize::from(reaches), "{context}");
                }
            }
        }
    }
}
