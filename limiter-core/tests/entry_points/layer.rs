//! Requests through a layer, and the calls of limiter-core that a layer makes.

use std::convert::Infallible;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use limiter_core::__private::{
    LayerWait, Passage, WaitLimit, admit, admit_waiting, after_try, try_acquire, try_decide, try_pass,
};
use limiter_core::{Amount, Key, Limiter, Policy, Rejection};
use limiter_tower::outbound;
use tower::{Service, ServiceExt as _};

use super::answer::Answer;

pub(crate) async fn handler(_: Request<String>) -> Result<Response<String>, Infallible> {
    Ok(Response::default())
}

pub(crate) fn key_of(key: Key<'static>) -> impl Fn(&Request<String>) -> Key<'static> + Clone {
    move |_| key.clone()
}

/// The result of a request to a service behind a layer.
pub(crate) async fn of_response<S, B>(service: S) -> Answer
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible>,
{
    let Ok(response) = service.oneshot(Request::default()).await;
    let extensions = response.extensions();
    match (response.status().is_success(), extensions.get::<Rejection>()) {
        (true, None) => extensions.get().map_or(Answer::Allowed(None), Answer::allowed),
        (false, Some(rejection)) if response.status() == rejection.http_status() => {
            Answer::of_rejection(rejection)
        }
        (_, rejection) => Answer::Other(format!("{} {rejection:?}", response.status())),
    }
}

/// The result of a request of a client behind a layer.
pub(crate) async fn of_client<S>(client: S) -> Answer
where
    S: Service<Request<String>, Error = outbound::BoxError>,
{
    match client.oneshot(Request::default()).await {
        Ok(_) => Answer::Allowed(None),
        Err(error) => match outbound::rejection(&*error) {
            Some(rejection) => Answer::of_rejection(rejection),
            None => Answer::Other(error.to_string()),
        },
    }
}

/// The calls of a layer that does not report allowed decisions.
pub(crate) async fn layer_call(limits: &Limiter, policy: &Policy, key: &Key<'_>, cost: u64) -> Answer {
    match try_pass(limits, policy, key, Amount::from(cost)) {
        Passage::Allowed => return Answer::Allowed(None),
        Passage::Decided(answer) => return Answer::of_decision(answer),
        Passage::Undecided => {}
    }
    let check = limits.check(policy, key).cost(cost);
    match try_decide(&check) {
        Poll::Ready(answer) => Answer::of_decision(answer),
        Poll::Pending => Answer::of_decision(admit(after_try(check)).await),
    }
}

/// The calls of a waiting layer with a timeout of zero.
pub(crate) async fn layer_call_that_waits(
    limits: &Limiter,
    policy: &Policy,
    key: &Key<'_>,
    cost: u64,
) -> Answer {
    let (check, wait_limit) = (limits.check(policy, key).cost(cost), WaitLimit::new(1));
    match try_acquire(&check) {
        Poll::Ready(answer) => Answer::of_decision(answer),
        Poll::Pending => {
            let waits = Some(LayerWait {
                timeout: Some(Duration::ZERO),
                wait_limit: &wait_limit,
                expects_refunds: false,
            });
            Answer::of_decision(admit_waiting(check, waits, None).await)
        }
    }
}
