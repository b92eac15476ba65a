use limiter_testing::RedisServer;
use tokio::time::timeout_at;

use crate::algorithm::Mode;
use crate::key::Namespace;
use crate::policy::Policy;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::client::node::*;
use crate::redis::client::tls::Certificates;
use crate::redis::script::input::Operation;
use crate::request::{DecisionRequest, LimitRequest};

/// A server's node, with one connection and room for one call.
pub(crate) fn node_of(server: &RedisServer) -> Node {
    let endpoint = Endpoint::parse(&server.url().into(), &Certificates::default()).unwrap();
    let settings = NodeSettings {
        connections: 1,
        max_in_flight: 1,
    };
    Node::new(Dialer::To(endpoint), settings, Clock::System)
}

/// It may have been sent here by another node, which took most of its time.
#[tokio::test]
async fn the_time_of_a_call_counts_from_its_beginning() {
    let server = RedisServer::start();
    let node = node_of(&server);
    let empty = wire::call(&[], None, Duration::from_secs(5));
    node.prepare(&empty).await.unwrap();
    server.pause();

    let policy = Policy::token_bucket("p").capacity(1).rate(1).build().unwrap();
    let request = DecisionRequest::new([LimitRequest::new(&policy, "k")], Mode::Charge, false).unwrap();
    let question = Arc::new(ScriptInput::new(
        &request,
        Operation::Check,
        &Namespace::new("", "n"),
    ));
    for _ in 0..5 {
        let started = Instant::now().checked_sub(Duration::from_millis(45)).unwrap();
        let wait = CallDeadline::since(started, Duration::from_millis(50));
        let asked = node.decide(BatchPart::default(), &question, &wait);
        assert!(timeout_at(wait.ends().into(), asked).await.is_err());
    }
    assert!(node.admit().is_err(), "five have waited in vain");
}
