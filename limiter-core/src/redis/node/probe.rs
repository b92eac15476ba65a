//! Probes of a server whose circuit breaker is open.
//!
//! The first rejected call after a pause starts a probe and does not wait for it: a task runs the
//! script without keys, which takes the time of a decision and needs no other permission. Without
//! calls, the task repeats the probe at long intervals until the breaker closes: otherwise the
//! first call after an outage would be rejected, however long ago it ended, and the metrics would
//! show the outage until then. The task holds the connections of its runtime and not the node; it
//! ends with the node. Tests: `tests.rs`, `tests/slow_server.rs`, `tests/metrics.rs`
//! (`outage_of_idle_process_ends_in_gauge`).

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::redis::client::breaker::Probe;
use crate::redis::client::connection::{Asking, Connection, Driver};
use crate::redis::client::failure::Failure;
use crate::redis::node::pools::RuntimeConnections;
use crate::redis::node::{Node, NodeInner, connection_error, send};
use crate::redis::script::wire;
use crate::support::jitter::with_jitter;
use crate::support::real_time::CallDeadline;
use crate::support::real_time::{sleep, timeout_at};

/// Pause between probes without calls. An idle client must not keep a server busy.
const IDLE_PAUSE: Duration = Duration::from_secs(5);
/// Interval at which a probe examines its connection.
const EXAMINED_EVERY: Duration = Duration::from_millis(50);

impl Node {
    /// Sends probes in a task of the current runtime until the breaker is closed, beginning with
    /// the probe that is due. The task replaces the previous one.
    pub(super) fn keep_probing(&self, due: Option<Probe>) {
        let Ok(local) = self.local() else { return };
        let task = tokio::spawn(probe_until_closed(Arc::downgrade(&self.0), local, due));
        *self.0.probe_task.lock() = Some(Driver::new(task.abort_handle()));
    }
}

async fn probe_until_closed(node: Weak<NodeInner>, local: Arc<RuntimeConnections>, mut due: Option<Probe>) {
    loop {
        if let Some(probe) = due {
            send_probe(&node, &local, probe).await;
        }
        sleep(with_jitter(IDLE_PAUSE)).await;
        let Some(node) = node.upgrade() else { return };
        if node.breaker.is_closed() {
            return;
        }
        due = node.breaker.due_probe(Instant::now());
    }
}

async fn send_probe(node: &Weak<NodeInner>, local: &RuntimeConnections, probe: Probe) {
    let wait = CallDeadline::after(probe.deadline());
    let call = wire::call(&[], None, wait.deadline()).with_deadline(wait);
    let exchange = async {
        let connection = local.connection(wait.deadline()).await;
        let mut connection = connection.map_err(Failure::Unreachable)?;
        let used = connection.clone();
        // On a broken connection, the reply may belong to a server that is no longer the primary.
        tokio::select! {
            biased;
            answer = send(&mut connection, &call, Asking::Omitted) => answer.map(Some),
            () = broken(&used) => Ok(None),
        }
    };
    let Ok(answer) = timeout_at(wait.ends(), exchange).await else {
        return probe.on_timeout(Instant::now());
    };
    if let Ok(None) = answer {
        return probe.on_timeout(Instant::now());
    }
    if connection_error(&answer).is_some() {
        return probe.unreachable(Instant::now());
    }
    if !probe.on_reply(wait.elapsed(), Instant::now()) {
        return;
    }
    if let Some(node) = node.upgrade() {
        Node(node).log_closing();
    }
}

/// Waits until a connection is broken: after a failover that Sentinel reports, the old primary may
/// never reply, and the deadline of the probe may be long.
async fn broken(connection: &Connection) {
    while !connection.is_broken() {
        sleep(EXAMINED_EVERY).await;
    }
}
