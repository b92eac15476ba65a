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
