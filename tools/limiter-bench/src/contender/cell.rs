//! The module redis-cell: a bucket in native code, one CL.THROTTLE per decision on one connection.

use redis::aio::MultiplexedConnection;

use super::{Decide, Setup};

#[derive(Debug)]
pub(super) struct RedisCell {
    connection: MultiplexedConnection,
    keys: Vec<String>,
    permits: u32,
    seconds: u64,
}

impl RedisCell {
    pub(super) async fn connect(setup: &Setup) -> Self {
        Self {
            connection: setup.address.multiplexed().await,
            keys: setup.stored_keys(),
            permits: setup.quota.permits,
            seconds: setup.quota.seconds,
        }
    }
}

impl Decide for RedisCell {
    async fn decide(&self, key: usize) -> bool {
        let mut command = redis::cmd("CL.THROTTLE");
        // The first argument is the burst above one permit.
        command
            .arg(&self.keys[key])
            .arg(self.permits - 1)
            .arg(self.permits)
            .arg(self.seconds)
            .arg(1);
        let mut connection = self.connection.clone();
        let reply: [i64; 5] = command
            .query_async(&mut connection)
            .await
            .expect("redis-cell decides");
        reply[0] == 0
    }
}
