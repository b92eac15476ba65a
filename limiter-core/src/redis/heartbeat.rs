//! Registration of this process among the replicas of a namespace.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use bb8_redis::redis::Value;

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::Route;
use crate::redis::script::{Call, HEARTBEAT, wire};
use crate::support::clock::Clock;
use crate::units::micros_ceil;

/// One replica of a namespace.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    route: Route,
    clock: Clock,
    /// The key of the register.
    key: String,
    /// Identifies this replica.
    id: [u8; 8],
}

impl Heartbeat {
    /// Timeout of a beat. No call waits for it.
    pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);

    pub(super) fn new(route: Route, clock: Clock, key: String) -> Self {
        // The seeds of each instance are random.
        let id = RandomState::new().hash_one((std::process::id(), SystemTime::now()));
        Self {
            route,
            clock,
            key,
            id: id.to_le_bytes(),
        }
    }

    /// Registers this replica for `life`, or removes it for a zero duration. Returns the number of
    /// replicas.
    pub(crate) async fn beat(&self, life: Duration) -> Result<u32, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.extend_from_slice(&self.id);
        plan.extend_from_slice(&micros_ceil(life).to_le_bytes());
        let call = Call::new(&HEARTBEAT, [&self.key], plan, Self::TIMEOUT);
        match self.route.run(&call).await? {
            Value::Int(count) if (0..=i64::from(u32::MAX)).contains(&count) => {
                u32::try_from(count).map_err(|_| malformed())
            }
            _ => Err(malformed()),
        }
    }
}

fn malformed() -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, "malformed reply to a heartbeat")
}

#[cfg(test)]
mod tests {
    use limiter_testing::RedisServer;

    use super::*;
    use crate::redis::token_lease::leased_limit::tests::store_on;
    use crate::support::clock::ManualClock;

    const LIFE: Duration = Duration::from_secs(30);

    /// The time of 200 beats by these replicas in microseconds, as the server measures it.
    async fn micros_of(server: &RedisServer, replicas: &[Heartbeat], clock: &ManualClock) -> u64 {
        let script_micros = || {
            let info = server.command(&["INFO", "commandstats"]).text().to_owned();
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
            let micros = line.and_then(|line| line.split("usec=").nth(1));
            micros
                .and_then(|rest| rest.split(',').next()?.parse().ok())
                .unwrap_or(0_u64)
        };
        let before = script_micros();
        for replica in replicas.iter().cycle().take(200) {
            clock.advance(Duration::from_micros(5_003));
            replica.beat(LIFE).await.unwrap();
        }
        script_micros() - before
    }

    /// Each replica beats every few seconds, so a beat that examines all of them costs the square
    /// of their number.
    #[tokio::test]
    async fn beats_of_large_fleet_replace_their_registrations() {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let store = store_on(&server, &clock);
        let first = [store.heartbeat()];
        first[0].beat(LIFE).await.unwrap();
        let one = micros_of(&server, &first, &clock).await;
        let fleet: Vec<Heartbeat> = (0..1_000).map(|_| store.heartbeat()).collect();
        for (number, replica) in (2..).zip(&fleet) {
            assert_eq!(replica.beat(LIFE).await.unwrap(), number);
        }
        let many = micros_of(&server, &fleet, &clock).await;
        assert!(many < one * 8, "{many} and {one} µs");

        // The others end, and are not counted.
        fleet[0].beat(Duration::ZERO).await.unwrap();
        for step in 1..=8 {
            clock.advance(Duration::from_secs(8));
            for replica in &fleet[1..=64] {
                clock.advance(Duration::from_micros(1_001));
                let count = replica.beat(LIFE).await.unwrap();
                assert!(step < 8 || count == 64, "{count}");
            }
        }
    }
}
