//! The leases of named holders in Redis; the layout is documented in `lua/holder_lease.lua`.
//!
//! One call of the script reads the record of a holder, or renews it together with the level of the
//! limit. A renewal names the epoch of the record, and the script renews no record of another
//! epoch, so a repeated report is counted once. The reply contains the record after the call.
//!
//! Tests: `tests/holder_leases.rs`; `tests/frozen/redis.rs` (layout).

use std::time::Duration;

use bb8_redis::redis::Value;

use crate::error::StoreError;
use crate::key::Namespace;
use crate::redis::RedisStore;
use crate::redis::script::reply::{self, Reader, malformed};
use crate::redis::script::{Call, HOLDER_LEASE, wire};
use crate::request::{HolderLease, HolderRenewal, HolderReply, ValidatedLimit};
use crate::support::real_time::with_deadline;
use crate::units::Timestamp;

const READ: u8 = 0;
const RENEW: u8 = 1;

impl RedisStore {
    /// Reads the lease of a holder, or renews it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the lease was renewed.
    pub(crate) async fn holder_lease(
        &self,
        limit: &ValidatedLimit<'_>,
        holder: &str,
        renewal: Option<&HolderRenewal<'_>>,
        deadline: Duration,
    ) -> Result<HolderReply, StoreError> {
        let policy = limit.policy;
        let key = self
            .namespace
            .redis_key(policy.code(), policy.escaped_name(), limit.group(), &limit.key);
        let record = Namespace::holder_key(&key, holder);
        let mut plan = wire::head(self.clock.injected());
        let (code, parameters) = wire::parameters(policy.algorithm());
        plan.extend_from_slice(&[if renewal.is_some() { RENEW } else { READ }, code]);
        let idle = HolderRenewal::default();
        let HolderRenewal {
            epoch,
            spent,
            steady,
            held,
            wanted,
            lifetime,
            data,
        } = renewal.unwrap_or(&idle);
        let numbers = [*epoch, *spent, u64::from(*steady), *held, *wanted, *lifetime];
        for number in parameters.into_iter().chain(numbers) {
            plan.extend_from_slice(&number.to_le_bytes());
        }
        plan.extend_from_slice(data);
        let call = Call::new(&HOLDER_LEASE, [key, record], plan, deadline);
        match with_deadline(deadline, self.route.run(&call)).await? {
            Value::BulkString(bytes) => read(&bytes),
            _ => Err(malformed()),
        }
    }
}

fn read(bytes: &[u8]) -> Result<HolderReply, StoreError> {
    let mut reader = Reader(bytes);
    let now = Timestamp::from_micros(reader.timestamp()?);
    let [found] = reader.array()?;
    if found != reply::READABLE {
        return Err(reply::unreadable_as(found)?);
    }
    let [renewed] = reader.array()?;
    let [epoch, leased, ends_at] = reader.numbers()?;
    Ok(HolderReply {
        is_renewed: renewed == 1,
        now,
        lease: HolderLease {
            epoch,
            leased,
            ends_at: Timestamp::from_micros(ends_at),
            data: reader.0.into(),
        },
    })
}
