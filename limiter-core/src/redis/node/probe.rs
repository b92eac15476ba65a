//! Probes of a server whose circuit breaker is open.
//!
//! The first rejected call after a pause starts a probe and does not wait for it: a task runs the
//! script without keys, which takes the time of a decision and needs no other permission. Without
//! calls there are no probes. The task holds the connections of its runtime and not the node; it
//! ends with the node. Tests: `tests.rs`, `tests/slow_server.rs`.

use std::sync::Arc;
use std::time::Instant;

use crate::redis::client::breaker::Probe;
use crate::redis::client::connection::{Asking, Driver};
use crate::redis::client::failure::Failure;
use crate::redis::node::{Node, connection_error, send};
use crate::redis::script::wire;
use crate::support::real_time::CallDeadline;
use crate::support::real_time::timeout_at;

impl Node {
    /// Sends a probe in a task of the current runtime.
    pub(super) fn start_probe(&self, probe: Probe) {
        let Ok(local) = self.local() else { return };
        let node = Arc::downgrade(&self.0);
        let wait = CallDeadline::after(probe.deadline());
        let task = tokio::spawn(async move {
            let call = wire::call(&[], None, wait.deadline()).with_deadline(wait);
            let exchange = async {
                let connection = local.connection(wait.deadline()).await;
                let mut connection = connection.map_err(Failure::Unreachable)?;
                send(&mut connection, &call, Asking::Omitted).await
            };
            let Ok(answer) = timeout_at(wait.ends(), exchange).await else {
                return probe.on_timeout(Instant::now());
            };
            if connection_error(&answer).is_some() {
                return probe.unreachable(Instant::now());
            }
            if !probe.answered(wait.elapsed(), Instant::now()) {
                return;
            }
            if let Some(node) = node.upgrade() {
                Self(node).log_closing();
            }
        });
        *self.0.probe_task.lock() = Some(Driver::new(task.abort_handle()));
    }
}
