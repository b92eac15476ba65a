//! Leases of permits for named holders.
//!
//! A holder leases permits of a policy and key, spends them or passes them on without a call to the
//! store, and reports the usage with the next renewal. Leased permits count as used, so stored and
//! leased permits together never exceed the permits that the policy would have left. The store
//! records one lease per holder with an epoch, which each renewal increases; a renewal of another
//! epoch changes nothing and returns the recorded lease. Processes that share a holder name
//! therefore agree on one state, which the lease carries as data.
//!
//! Tests: `tests/holder_leases.rs`, `algorithm/leased_level/holder.rs` for the step.

mod decisions;

use std::fmt;
use std::time::Duration;

use crate::algorithm::{Mode, WHOLE_RATE};
use crate::decision::Rejection;
use crate::error::ConfigError;
pub use crate::holder_lease::decisions::HolderDecisions;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::{Algorithm, Policy};
use crate::request::{DecisionRequest, HolderLease, HolderRenewal, HolderReply, LimitRequest};
use crate::units::{Amount, MAX_EXACT, Timestamp, micros_ceil};

const DEFAULT_LIFETIME: Duration = Duration::from_secs(20);
/// The shortest and the longest lifetime of a lease.
const LIFETIMES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(3_600)];
const MAX_HOLDER_BYTES: usize = 128;
const MAX_DATA_BYTES: usize = 1 << 16;

impl Limiter {
    /// Starts a call about the lease of `holder` on `key` under `policy`, a token bucket or a
    /// funnel.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::lease::{LeaseReport, LeaseRenewal};
    /// use limiter_core::{Amount, Limiter, ManualClock, Policy};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let bytes = Policy::token_bucket("bytes").capacity(100).rate("1/s").build()?;
    ///
    /// let call = || limits.token_lease(&bytes, "ann", "node-1");
    /// let none = call().read().await?;
    /// let wanted = LeaseReport::default().wanted(60_u32);
    /// let LeaseRenewal::Renewed(lease) = call().renew(&none, wanted).await? else { panic!() };
    /// assert_eq!(lease.permits(), Amount::from(60_u32));
    /// assert_eq!(limits.peek(&bytes, "ann").await?.remaining(), 40);
    ///
    /// // 10 of the 60 permits were spent.
    /// call().release(&lease, 10_u32.into()).await?;
    /// assert_eq!(limits.peek(&bytes, "ann").await?.remaining(), 90);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn token_lease<'a>(
        &'a self,
        policy: &'a Policy,
        key: impl Into<Key<'a>>,
        holder: &'a str,
    ) -> LeaseCall<'a> {
        LeaseCall {
            limiter: self,
            limit: LimitRequest::new(policy, key).cost(Amount::ZERO),
            holder,
            lifetime: DEFAULT_LIFETIME,
        }
    }
}

/// A call about a lease. Created by [`Limiter::token_lease`].
#[derive(Clone, Debug)]
#[must_use = "a lease changes only with `renew` or `release`"]
pub struct LeaseCall<'a> {
    limiter: &'a Limiter,
    limit: LimitRequest<'a>,
    holder: &'a str,
    lifetime: Duration,
}

/// The usage of a lease and the permits of the next one. By default, nothing is used or wanted.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a report changes nothing until a lease is renewed with it"]
pub struct LeaseReport<'a> {
    spent: Amount,
    steady: u32,
    held: Amount,
    wanted: Amount,
    data: &'a [u8],
}

/// The result of [`LeaseCall::renew`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LeaseRenewal {
    /// The report was applied. This is the new lease.
    Renewed(TokenLease),
    /// The recorded lease has another epoch, and the report was not applied: an earlier call with
    /// this report was applied, another process renewed the lease, or the lease has ended. This is
    /// the recorded lease.
    Superseded(TokenLease),
}

/// The lease that the store recorded for a holder.
#[derive(Clone)]
pub struct TokenLease {
    lease: HolderLease,
    decided_at: Timestamp,
}

impl<'a> LeaseReport<'a> {
    /// Sets the permits that were spent since the last renewal. The part above the lease is charged
    /// unconditionally. Default: 0.
    pub fn spent(self, spent: impl Into<Amount>) -> Self {
        let spent = spent.into();
        Self { spent, ..self }
    }

    /// Sets the rate at which buckets of the holder are refilled until the next renewal, in
    /// millionths of the policy's rate. The policy is then refilled at the rest of its rate; the
    /// refill of the buckets is not reported as spent. The permits that the buckets can contain are
    /// [held](Self::held). The rates of all holders must not exceed the policy's: a larger sum
    /// counts as the policy's rate. Default: 0.
    pub fn steady_millionths(self, steady: u32) -> Self {
        Self { steady, ..self }
    }

    /// Sets the permits that stay leased in any case, because the holder has passed them on. If
    /// they are missing, they are a debt of the policy. Default: 0.
    pub fn held(self, held: impl Into<Amount>) -> Self {
        let held = held.into();
        Self { held, ..self }
    }

    /// Sets the permits to lease, including those that are held: as many as remain, except one
    /// eighth of the others that remain, rounded down to whole permits, which stays for other
    /// callers. Default: the held ones.
    pub fn wanted(self, wanted: impl Into<Amount>) -> Self {
        let wanted = wanted.into();
        Self { wanted, ..self }
    }

    /// Sets the data that the store records with the lease, at most 65,536 bytes. Default: none.
    pub fn data(self, data: &'a [u8]) -> Self {
        Self { data, ..self }
    }
}

impl LeaseCall<'_> {
    /// Sets the time for which the lease counts without a renewal. Default: 20 s. At least 100 ms
    /// and at most one hour.
    pub fn lifetime(self, lifetime: Duration) -> Self {
        Self { lifetime, ..self }
    }

    /// Reads the recorded lease; a lease without permits and of epoch 0 if there is none.
    ///
    /// An earlier process of this holder may have spent the permits without a report. A process
    /// that does not know the usage, for example from the [data](TokenLease::data), must renew the
    /// lease with all its permits as spent; otherwise they can be spent twice.
    ///
    /// # Errors
    ///
    /// As [`renew`](Self::renew).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a read changes nothing.
    pub async fn read(self) -> Result<TokenLease, Rejection> {
        let reply = self.run(None).await?;
        Ok(TokenLease::from(reply))
    }

    /// Reports the usage of `lease` and replaces it by the next lease.
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for a policy that is no token bucket or funnel, more wanted permits
    /// than the capacity, a steady rate above the policy's or without held permits, a lifetime, a
    /// holder name or data out of range;
    /// [`Rejection::Unavailable`] if the store does not reply. The report may have been applied
    /// then; repeating the call applies it at most once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the report was applied.
    pub async fn renew(self, lease: &TokenLease, report: LeaseReport<'_>) -> Result<LeaseRenewal, Rejection> {
        let capacity = self.limit.policy().quota();
        if report.wanted > capacity {
            let expected = format!("at most the capacity {capacity} of the policy");
            return Err(ConfigError::invalid("wanted permits of a lease", report.wanted, expected).into());
        }
        let most = if report.held > Amount::ZERO { WHOLE_RATE } else { 0 };
        if u64::from(report.steady) > most {
            let expected = format!("at most {most} millionths with {} held permits", report.held);
            return Err(ConfigError::invalid("steady rate of a lease", report.steady, expected).into());
        }
        if report.data.len() > MAX_DATA_BYTES {
            let expected = format!("at most {MAX_DATA_BYTES} bytes");
            return Err(ConfigError::invalid("data of a lease", report.data.len(), expected).into());
        }
        let [shortest, longest] = LIFETIMES;
        if self.lifetime < shortest || self.lifetime > longest {
            let shown = format!("{:?}", self.lifetime);
            let expected = format!("from {shortest:?} to {longest:?}");
            return Err(ConfigError::invalid("lifetime of a lease", shown, expected).into());
        }
        let renewal = HolderRenewal {
            epoch: lease.lease.epoch,
            spent: thousandths("spent permits of a lease", report.spent)?,
            steady: report.steady,
            held: thousandths("held permits of a lease", report.held)?,
            wanted: thousandths("wanted permits of a lease", report.wanted)?,
            lifetime: micros_ceil(self.lifetime),
            data: report.data,
        };
        let reply = self.run(Some(&renewal)).await?;
        let is_renewed = reply.is_renewed;
        let lease = TokenLease::from(reply);
        Ok(match is_renewed {
            true => LeaseRenewal::Renewed(lease),
            false => LeaseRenewal::Superseded(lease),
        })
    }

    /// Reports the spent permits of `lease` and returns the others.
    ///
    /// # Errors
    ///
    /// As [`renew`](Self::renew).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the permits were returned.
    pub async fn release(self, lease: &TokenLease, spent: Amount) -> Result<LeaseRenewal, Rejection> {
        self.renew(lease, LeaseReport::default().spent(spent)).await
    }

    async fn run(self, renewal: Option<&HolderRenewal<'_>>) -> Result<HolderReply, Rejection> {
        self.limiter.open()?;
        let policy = self.limit.policy();
        if !matches!(
            policy.algorithm(),
            Algorithm::TokenBucket(_) | Algorithm::Funnel(_)
        ) {
            let expected = "a token bucket or a funnel";
            return Err(ConfigError::invalid("policy of a lease", policy.name(), expected).into());
        }
        if self.holder.is_empty() || self.holder.len() > MAX_HOLDER_BYTES {
            let expected = format!("a name of 1 to {MAX_HOLDER_BYTES} bytes");
            return Err(ConfigError::invalid("holder of a lease", self.holder, expected).into());
        }
        let inner = &self.limiter.inner;
        let limit = self.limit.with_defaults(&self.limiter.inner.defaults);
        let request = DecisionRequest::new([limit], Mode::Peek, inner.any_groups)?;
        let name = request.queue();
        // Returned permits may admit a waiter.
        let _notifier = inner.queues.refund_notifier(&name);
        let deadline = request.deadline();
        #[expect(clippy::indexing_slicing, reason = "the request was built from one limit")]
        let limit = &request.limits[0];
        let lease = inner.backend.holder_lease(limit, self.holder, renewal, deadline);
        Ok(lease.await?)
    }
}

/// Returns an amount in thousandths; sums of several stay within the exact range.
fn thousandths(field: &'static str, amount: Amount) -> Result<u64, ConfigError> {
    let thousandths = u64::try_from(amount.as_thousandths()).ok();
    thousandths
        .filter(|thousandths| *thousandths <= MAX_EXACT / 4)
        .ok_or_else(|| {
            let most = Amount::from_thousandths(MAX_EXACT / 4);
            ConfigError::invalid(field, amount, format!("at most {most}"))
        })
}

impl TokenLease {
    /// Returns the leased permits.
    #[must_use]
    pub fn permits(&self) -> Amount {
        Amount::from_thousandths(self.lease.leased)
    }

    /// Returns the number that each renewal increases; 0 without a lease.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.lease.epoch
    }

    /// Returns the time, by the store's clock, from which the permits count as spent.
    #[must_use]
    pub fn ends_at(&self) -> Timestamp {
        self.lease.ends_at
    }

    /// Returns the time of the call, by the store's clock.
    #[must_use]
    pub fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Returns the data of the last renewal.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.lease.data
    }
}

impl From<HolderReply> for TokenLease {
    fn from(HolderReply { now, lease, .. }: HolderReply) -> Self {
        Self {
            lease,
            decided_at: now,
        }
    }
}

/// Without the data, which may be long.
impl fmt::Debug for TokenLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenLease")
            .field("permits", &self.permits())
            .field("epoch", &self.epoch())
            .field("ends_at", &self.ends_at())
            .finish_non_exhaustive()
    }
}
