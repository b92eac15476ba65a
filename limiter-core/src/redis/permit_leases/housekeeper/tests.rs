use limiter_testing::RedisServer;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::algorithm::Mode;
use crate::memory::permit_table::{PermitGuard, PermitTerms};
use crate::policy::Policy;
use crate::redis::permit_leases::housekeeper::*;
use crate::redis::permit_leases::store::ConcurrencyStore;
use crate::redis::permit_leases::{AcquireOutcome, PermitLease};
use crate::redis::token_lease::leased_limit::tests::store_on;
use crate::request::{DecisionRequest, LimitRequest};
use crate::support::clock::{Clock, ManualClock};

const PATIENCE: Duration = Duration::from_secs(30);
const TERMS: PermitTerms = PermitTerms {
    cost: 1,
    max: 1,
    lease_ms: 9_000,
};
/// The numbers of the first permit and of the first task.
const PERMIT: u64 = 0;
const TASK: u64 = 1;

/// The leases of a process that holds the only permit of a key.
struct Holder {
    server: RedisServer,
    clock: ManualClock,
    leases: Arc<PermitLeases>,
    policy: Policy,
}

impl Holder {
    fn new() -> Self {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let store = ConcurrencyStore::of(&store_on(&server, &clock));
        let policy = Policy::token_bucket("p").capacity(1).rate(1).build();
        Self {
            leases: PermitLeases::new(store, Clock::Manual(clock.clone()), 1),
            server,
            clock,
            policy: policy.unwrap(),
        }
    }

    fn request(&self) -> DecisionRequest<'_> {
        DecisionRequest::new([LimitRequest::new(&self.policy, "k")], Mode::Charge, false).unwrap()
    }

    /// Acquires the permit, and suspends the server before its renewal.
    async fn acquire_and_renew(&self) -> PermitGuard<PermitLease> {
        let request = self.request();
        let acquired = self.leases.enter(&request.limits[0], TERMS, PATIENCE).await;
        let AcquireOutcome::Admitted(permit, _) = acquired.unwrap() else {
            panic!("no other process holds a permit");
        };
        self.server.pause();
        self.clock.advance(Duration::from_secs(5));
        while !self.leases.lock().is_under_way(PERMIT) {
            yield_now().await;
        }
        permit
    }

    /// Settles while the clock moves: a repeated release is due a second after the first one.
    async fn settle(&self) {
        let time = async {
            loop {
                self.count_held().await;
                self.clock.advance(Duration::from_millis(100));
            }
        };
        tokio::select! {
            settled = timeout(PATIENCE, self.leases.settle()) => settled.unwrap(),
            () = time => {}
        }
    }

    async fn count_held(&self) -> u64 {
        let request = self.request();
        let occupancy = self.leases.peek(&request.limits[0], PATIENCE).await;
        occupancy.unwrap().held
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn release_succeeds_after_end_of_renewing_runtime() {
    let holder = Holder::new();
    let permit = runtime().block_on(holder.acquire_and_renew());
    holder.server.resume();
    runtime().block_on(async {
        let lease = permit.release().unwrap();
        lease.release(PATIENCE).await.unwrap();
        assert_eq!(holder.count_held().await, 0);
    });
}

/// The stalled task ends before the reply to its renewal is read.
#[test]
fn renewal_of_stalled_runtime_reports_its_end() {
    let (holder, stalled) = (Holder::new(), runtime());
    let permit = stalled.block_on(holder.acquire_and_renew());
    holder.server.resume();
    // The heartbeat of the task is late, so the release starts another task.
    holder.leases.lock().extend_housekeeper(TASK, Instant::now());
    runtime().block_on(async {
        drop(permit);
        holder.settle().await;
        assert_eq!(holder.count_held().await, 0);
    });
    stalled.block_on(async {
        let reported = timeout(PATIENCE, holder.leases.settled.notified());
        reported.await.expect("the renewal reports its end");
        // The renewal may have reached Redis after the release.
        holder.settle().await;
        assert_eq!(holder.count_held().await, 0);
    });
}

/// The runtime of the task is no longer driven, which is not known when the wait begins.
#[test]
fn settle_takes_over_from_stalled_task() {
    let (holder, stalled) = (Holder::new(), runtime());
    let permit = stalled.block_on(holder.acquire_and_renew());
    holder.server.resume();
    drop(permit);
    runtime().block_on(async {
        let stall = async {
            yield_now().await;
            holder.leases.lock().extend_housekeeper(TASK, Instant::now());
        };
        tokio::join!(holder.settle(), stall);
        assert_eq!(holder.count_held().await, 0);
    });
}
