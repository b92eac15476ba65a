//! Load shedding by priority.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{Request, Response, StatusCode};
use limiter_tower::future::LoadShedFuture;
use limiter_tower::key::Global;
use limiter_tower::load_shed::{DefaultPriority, InFlightGuard, LoadShedBody};
use limiter_tower::{LoadShed, LoadShedLayer, Overloaded, Priority, ResponseConfig, skip};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use super::support::{Strict, request, text};
use super::{Streams, answer, begin, data, poll_once};

const fn is_send<T: Send>() {}
const fn is_clonable_and_shareable<T: Clone + Send + Sync + 'static>() {}

const _: () = {
    is_clonable_and_shareable::<LoadShedLayer>();
    is_clonable_and_shareable::<LoadShed<Strict, DefaultPriority>>();
    is_send::<LoadShedFuture<std::future::Ready<Global>>>();
    is_send::<LoadShedBody<String, InFlightGuard>>();
};

/// The priority in the path.
fn class(request: &Request<String>) -> Option<Priority> {
    match request.uri().path() {
        "/batch" => Some(Priority::Sheddable),
        "/high" => Some(Priority::High),
        "/critical" => Some(Priority::Critical),
        "/free" => None,
        _ => Some(Priority::Normal),
    }
}

type ByPath = fn(&Request<String>) -> Option<Priority>;

/// Bounds: three sheddable requests, four normal, six high, seven critical.
fn layer() -> LoadShedLayer<ByPath> {
    LoadShedLayer::new(7)
        .reserve_for(Priority::Normal, 1)
        .reserve_for(Priority::High, 2)
        .reserve_for(Priority::Critical, 1)
        .priority(class as ByPath)
}

fn to(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}

#[tokio::test]
async fn priority_uses_unreserved_capacity() {
    let layer = layer();
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = layer.clone().layer(inner);
    let mut held = Vec::new();
    for (path, fits) in [("/batch", 3), ("/", 1), ("/high", 2), ("/critical", 1)] {
        for _ in 0..fits {
            let response = answer(&mut service, to(path));
            assert_eq!(response.status(), 200, "{path}");
            held.push(response);
        }
        for lower in ["/batch", "/", "/high", "/critical"] {
            let response = answer(&mut service, to(lower));
            assert_eq!(response.status(), 503, "{lower} after {path}");
            if lower == path {
                break;
            }
        }
    }
    assert_eq!((layer.in_flight(), calls.load(Ordering::SeqCst)), (7, 7));
    assert_eq!(answer(&mut service, to("/free")).status(), 200);
    assert_eq!(answer(&mut service, to("/healthz")).status(), 200);
    assert_eq!(layer.in_flight(), 7, "skipped requests are not counted");
    let shed = Priority::ALL.map(|class| layer.shed(class));
    assert_eq!(shed, [4, 3, 2, 1]);

    // A request of high priority may use unreserved capacity: only the total counts.
    held.clear();
    held.extend([(); 4].map(|()| answer(&mut service, to("/critical"))));
    assert_eq!(answer(&mut service, to("/")).status(), 503);
    held.pop();
    assert_eq!(answer(&mut service, to("/")).status(), 200);
}

#[tokio::test]
async fn shed_request_gets_503() {
    let shed = LoadShedLayer::new(1);
    let grpc = || {
        let mut request = request("ann");
        let grpc = "application/grpc+proto".parse().unwrap();
        request.headers_mut().insert("content-type", grpc);
        request
    };
    let mut service = shed.clone().layer(Strict::default());
    let held = answer(&mut service, request("ann"));
    let denied = answer(&mut service, request("ann"));
    assert_eq!(denied.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    assert!(!denied.headers().contains_key("retry-after"));
    let overloaded = denied.extensions().get::<Overloaded>().unwrap();
    assert_eq!(overloaded.priority, Priority::Normal);
    let problem: serde_json::Value = serde_json::from_str(&text(denied).await).unwrap();
    assert_eq!(
        problem,
        serde_json::json!({
            "type": "about:blank",
            "title": "Service Unavailable",
            "status": 503,
            "detail": "the service is overloaded",
        })
    );
    let denied = answer(&mut service, grpc());
    assert_eq!(denied.status(), 200);
    assert_eq!(denied.headers()["grpc-status"], "14");
    assert_eq!(denied.headers()["grpc-message"], "the service is overloaded");
    assert!(!denied.headers().contains_key("grpc-retry-pushback-ms"));

    // A modified layer shares the counter of its original.
    let mut service = shed
        .retry_after(Duration::from_micros(1_500_001))
        .responses(&ResponseConfig::new().plain_text())
        .layer(Strict::default());
    let denied = answer(&mut service, request("ann"));
    assert_eq!(denied.headers()["retry-after"], "2");
    assert_eq!(text(denied).await, "the service is overloaded");
    let denied = answer(&mut service, grpc());
    assert_eq!(denied.headers()["grpc-retry-pushback-ms"], "1501");
    assert!(!denied.headers().contains_key("retry-after"));
    drop(held);
}

#[tokio::test]
async fn probes_and_skipped_requests_are_not_counted() {
    let mut service = LoadShedLayer::new(1)
        .with_probes()
        .skip(skip::paths(["/metrics"]))
        .layer(Strict::default());
    let held = answer(&mut service, to("/healthz"));
    assert_eq!(answer(&mut service, to("/healthz")).status(), 503);
    assert_eq!(answer(&mut service, to("/metrics")).status(), 200);
    drop(held);
}

#[test]
fn verify_rejects_unusable_bounds_and_reservations() {
    let bound = || LoadShedLayer::new(4);
    let reserve = |class, places| bound().reserve_for(class, places).verify().map(drop);
    let error = |result: Result<(), limiter_core::ConfigError>| result.unwrap_err().to_string();
    assert!(error(LoadShedLayer::new(0).verify().map(drop)).contains("`0`"));
    assert!(error(reserve(Priority::Sheddable, 1)).contains("1 for Sheddable`"));
    assert!(error(reserve(Priority::Critical, 4)).contains("fewer than 4 in total"));
    assert!(error(reserve(Priority::Critical, usize::MAX)).contains("fewer than 4"));
    let all = bound().reserve_for(Priority::High, 2);
    assert!(all.clone().reserve_for(Priority::Critical, 2).verify().is_err());
    assert!(all.clone().reserve_for(Priority::Critical, 1).verify().is_ok());
    assert!(
        all.reserve_for(Priority::High, 3).verify().is_ok(),
        "the last reservation of a class counts"
    );
}

#[tokio::test]
async fn request_counts_until_its_response_ends() {
    let layer = LoadShedLayer::new(1);
    let streams = Streams::default();
    let mut service = layer.clone().layer(streams.clone());
    let mut response = answer(&mut service, request("ann"));
    streams.last().send(data()).unwrap();
    let body = std::pin::pin!(response.body_mut());
    assert!(
        poll_once(std::pin::pin!(http_body_util::BodyExt::frame(
            &mut *body.get_mut()
        )))
        .is_ready()
    );
    assert_eq!(layer.in_flight(), 1);
    drop(response);
    assert_eq!(layer.in_flight(), 0);

    let mut fails = layer.clone().layer(service_fn(async |request: Request<String>| {
        assert!(request.headers().is_empty(), "intended panic");
        Err::<Response<String>, _>("broken")
    }));
    let mut failed = Box::pin(fails.call(to("/")));
    assert_eq!(layer.in_flight(), 1);
    assert!(matches!(poll_once(failed.as_mut()), Poll::Ready(Err("broken"))));
    assert_eq!(layer.in_flight(), 0, "although the future still exists");
    let panics = catch_unwind(AssertUnwindSafe(|| {
        drop(poll_once(Box::pin(fails.call(request("ann"))).as_mut()))
    }));
    assert!(panics.is_err());
    assert_eq!(layer.in_flight(), 0);

    let mut hangs = layer.clone().layer(service_fn(async |_: Request<String>| {
        std::future::pending::<Result<Response<String>, Infallible>>().await
    }));
    for _ in 0..10_000 {
        assert!(begin(&mut hangs, request("ann")).1.is_pending());
    }
    assert_eq!(layer.in_flight(), 0);
}

/// A server does not poll a body beyond the length that the response states, and no body of HEAD.
#[tokio::test]
async fn request_counts_until_its_last_byte() {
    let layer = LoadShedLayer::new(1);
    let streams = Streams::default();
    let mut service = ServiceBuilder::new()
        .layer(layer.clone())
        .map_response(|mut response: Response<_>| {
            response.headers_mut().insert(CONTENT_LENGTH, 8.into());
            response
        })
        .service(streams.clone());
    let mut response = answer(&mut service, request("ann"));
    let sender = streams.last();
    for in_flight in [1, 0] {
        sender.send(data()).unwrap();
        let frame = std::pin::pin!(http_body_util::BodyExt::frame(response.body_mut()));
        assert!(poll_once(frame).is_ready());
        assert_eq!(layer.in_flight(), in_flight);
    }
    let head = Request::head("/").body(String::new()).unwrap();
    let _response = answer(&mut service, head);
    assert_eq!(layer.in_flight(), 0, "the head is complete");
}

#[tokio::test]
async fn shed_request_releases_ready_slot() {
    let layer = LoadShedLayer::new(1);
    let held = answer(&mut layer.clone().layer(Strict::default()), request("ann"));
    let service = ServiceBuilder::new()
        .layer(layer)
        .layer(ConcurrencyLimitLayer::new(1))
        .service(Strict::default());
    let mut connections = vec![service; 3];
    for connection in &mut connections {
        let ready = tokio::time::timeout(Duration::from_secs(5), connection.ready());
        let response = ready.await.unwrap().unwrap().call(request("ann"));
        assert_eq!(response.await.unwrap().status(), 503);
    }
    drop(held);
}

#[tokio::test]
async fn backpressure_and_errors_of_inner_service_are_forwarded() {
    let layer = LoadShedLayer::new(1);
    let (mut service, mut inner) =
        tower_test::mock::spawn_layer::<Request<String>, Response<String>, _>(layer);
    inner.allow(0);
    assert!(service.poll_ready().is_pending());
    inner.allow(1);
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
    let response = tokio::spawn(service.call(request("ann")));
    let next_request = tokio::time::timeout(Duration::from_secs(5), inner.next_request());
    let (_, respond) = next_request.await.unwrap().unwrap();
    respond.send_error("broken");
    assert_eq!(response.await.unwrap().unwrap_err().to_string(), "broken");
}

/// The inner service counts how many are in it, which is never more than the bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_in_flight_never_exceed_bound() {
    let layer = layer();
    let inside = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&inside);
    let service = layer.clone().layer(service_fn(move |_: Request<String>| {
        let inside = Arc::clone(&counts);
        async move {
            let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(now <= 7, "{now}");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    }));
    let tasks: Vec<_> = ["/batch", "/", "/high", "/critical"]
        .into_iter()
        .cycle()
        .take(32)
        .map(|path| {
            let service = service.clone();
            tokio::spawn(async move {
                let mut served = 0;
                for _ in 0..500 {
                    let response = service.clone().oneshot(to(path)).await.unwrap();
                    served += usize::from(response.status().is_success());
                    tokio::task::yield_now().await;
                }
                served
            })
        })
        .collect();
    let mut served = 0;
    for task in tasks {
        served += task.await.unwrap();
    }
    let shed: usize = Priority::ALL.iter().map(|class| layer.shed(*class)).sum();
    assert_eq!(served + shed, 32 * 500);
    assert!(served > 0 && shed > 0);
    assert_eq!((layer.in_flight(), inside.load(Ordering::SeqCst)), (0, 0));
}

#[cfg(feature = "tonic")]
#[test]
fn tonic_service_name_is_forwarded() {
    use tonic::server::NamedService;

    #[derive(Clone)]
    struct Greeter;

    impl NamedService for Greeter {
        const NAME: &'static str = "greeter.Greeter";
    }
    assert_eq!(<LoadShed<Greeter> as NamedService>::NAME, "greeter.Greeter");
}
