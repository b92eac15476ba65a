//! INCRBY: one of the cheapest commands that write, as the lower bound of one command per decision.

use redis::aio::ConnectionLike;

use super::{Decide, Setup};

/// It has no refill, so it limits only a total.
#[derive(Debug)]
pub(super) struct Incrby<C> {
    connection: C,
    keys: Vec<String>,
    permits: i64,
    limits: usize,
}

impl<C> Incrby<C> {
    pub(super) fn new(connection: C, setup: &Setup) -> Self {
        Self {
            connection,
            keys: setup.stored_keys(),
            permits: match setup.quota.seconds {
                // There is no refill, so a quota that refills at once is treated as unlimited.
                1 => i64::MAX,
                _ => setup.quota.permits.into(),
            },
            limits: setup.limits,
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Decide for Incrby<C> {
    async fn decide(&self, key: usize) -> bool {
        let (mut connection, key) = (self.connection.clone(), &self.keys[key]);
        if self.limits == 1 {
            let mut command = redis::cmd("INCRBY");
            command.arg(key).arg(1);
            let used: i64 = command.query_async(&mut connection).await.expect("Redis counts");
            return used <= self.permits;
        }
        let mut pipeline = redis::pipe();
        for limit in 0..self.limits {
            pipeline.cmd("INCRBY").arg(format!("{key}{limit}")).arg(1);
        }
        let used: Vec<i64> = pipeline.query_async(&mut connection).await.expect("Redis counts");
        used.iter().all(|used| *used <= self.permits)
    }
}
