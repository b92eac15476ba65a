//! A plain token bucket, one EVALSHA a decision: over one multiplexed connection, or over a pool.

use bb8_redis::{RedisConnectionManager, bb8};
use redis::Cmd;
use redis::aio::ConnectionLike;

use super::{Decide, Setup};

const SCRIPT: &str = include_str!("token_bucket.lua");
/// Enough to keep the server busy, as pools go.
const POOL: u32 = 16;

/// The command of one decision.
#[derive(Debug)]
struct Bucket {
    sha: String,
    keys: Vec<String>,
    capacity: u32,
    rate: f64,
    limits: usize,
}

impl Bucket {
    /// Loads the script, on every node if there are several.
    async fn load(connection: &mut impl ConnectionLike, setup: &Setup) -> Self {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        Self {
            sha: load.query_async(connection).await.expect("the script is valid"),
            keys: setup.stored_keys(),
            capacity: setup.quota.permits,
            rate: f64::from(setup.quota.permits) / setup.quota.seconds as f64,
            limits: setup.limits,
        }
    }

    fn fill(&self, command: &mut Cmd, key: &str) {
        command
            .arg(&self.sha)
            .arg(1)
            .arg(key)
            .arg(self.capacity)
            .arg(self.rate)
            .arg(1);
    }

    /// Sends one call per limit in a pipeline, so several limits are not one decision.
    async fn decide(&self, connection: &mut impl ConnectionLike, key: usize) -> bool {
        let key = &self.keys[key];
        if self.limits == 1 {
            let mut command = redis::cmd("EVALSHA");
            self.fill(&mut command, key);
            return command
                .query_async::<i64>(connection)
                .await
                .expect("Redis decides")
                == 1;
        }
        let mut pipeline = redis::pipe();
        for limit in 0..self.limits {
            let mut command = redis::cmd("EVALSHA");
            self.fill(&mut command, &format!("{key}{limit}"));
            pipeline.add_command(command);
        }
        let allowed: Vec<i64> = pipeline.query_async(connection).await.expect("Redis decides");
        allowed.iter().all(|allowed| *allowed == 1)
    }
}

#[derive(Debug)]
pub(super) struct ScriptMultiplexed<C> {
    connection: C,
    bucket: Bucket,
}

impl<C: ConnectionLike> ScriptMultiplexed<C> {
    pub(super) async fn new(mut connection: C, setup: &Setup) -> Self {
        let bucket = Bucket::load(&mut connection, setup).await;
        Self { connection, bucket }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Decide for ScriptMultiplexed<C> {
    async fn decide(&self, key: usize) -> bool {
        self.bucket.decide(&mut self.connection.clone(), key).await
    }
}

/// Each call has a connection to itself, and trusts it without a PING.
#[derive(Debug)]
pub(super) struct ScriptPool {
    pool: bb8::Pool<RedisConnectionManager>,
    bucket: Bucket,
}

impl ScriptPool {
    pub(super) async fn connect(setup: &Setup) -> Self {
        let manager = RedisConnectionManager::new(setup.address.connection()).expect("the URL is valid");
        let pool = bb8::Pool::builder()
            .max_size(POOL)
            .min_idle(POOL)
            .test_on_check_out(false)
            .build(manager)
            .await
            .expect("Redis answers");
        let bucket = Bucket::load(&mut setup.address.multiplexed().await, setup).await;
        Self { pool, bucket }
    }
}

impl Decide for ScriptPool {
    async fn decide(&self, key: usize) -> bool {
        let mut connection = self.pool.get().await.expect("a connection comes free");
        self.bucket.decide(&mut *connection, key).await
    }
}
