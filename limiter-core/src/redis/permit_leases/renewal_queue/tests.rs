use crate::error::StoreErrorKind;
use crate::identity::Prefix;
use crate::memory::permit_table::PermitTerms;
use crate::redis::permit_leases::renewal_queue::*;
use crate::redis::permit_leases::validity::ends;

const LEASE: Duration = Duration::from_secs(9);

/// A queue with one lease, and the number of the task that renews it.
struct Lease {
    queue: RenewalQueue,
    renewal: Renewal,
    started: Instant,
}

impl Lease {
    fn new() -> Self {
        let terms = PermitTerms {
            cost: 1,
            max: 1,
            lease_ms: 9_000,
        };
        let renewal = Renewal {
            key: "key".into(),
            identity: Prefix::new("conc", "p").identity(None, "key"),
            permit: PermitId { number: 7, terms },
            validity: Arc::new(Validity::until(ends(at(0), &terms))),
        };
        let mut queue = RenewalQueue::new();
        queue.schedule_renewal(renewal.clone(), at(0));
        Self {
            queue,
            renewal,
            started: Instant::now(),
        }
    }

    /// Starts a task `after` the first one; the tasks before it have stalled.
    fn start_task(&mut self, after: u64) -> u64 {
        let now = self.started + Duration::from_secs(after);
        let until = now + Duration::from_secs(1);
        self.queue.start_housekeeper(until, now).unwrap()
    }

    /// Releases the lease.
    fn release(&mut self) {
        self.queue.schedule_release(Release {
            key: Arc::clone(&self.renewal.key),
            identity: self.renewal.identity,
            permit: self.renewal.permit,
            expires_at: at(20).as_micros(),
            due: 0,
            repeats: false,
            notifies_next: true,
        });
    }

    fn renewals(&mut self, task: u64) -> RenewalBatch {
        match self.calls(task).pop() {
            Some(RenewalCall::Renew(batch)) => batch,
            other => panic!("expected a renewal, got {other:?}"),
        }
    }

    fn releases(&mut self, task: u64) -> Vec<Release> {
        match self.calls(task).pop() {
            Some(RenewalCall::Release(releases)) => releases,
            other => panic!("expected a release, got {other:?}"),
        }
    }

    /// The calls that are due after a renewal of the lease is due.
    fn calls(&mut self, task: u64) -> Vec<RenewalCall> {
        let (calls, _) = self.queue.due_calls(task, at(5), 64).unwrap();
        assert!(calls.len() <= 1);
        calls
    }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(0).after(LEASE / 9 * u32::try_from(seconds).unwrap())
}

#[test]
fn release_waits_for_renewal_in_flight() {
    let mut lease = Lease::new();
    let task = lease.start_task(0);
    let renewals = lease.renewals(task);
    lease.release();
    assert!(lease.calls(task).is_empty());
    lease.queue.on_renewed(&renewals, at(5), Ok(()));
    assert_eq!(lease.releases(task).len(), 1);
}

/// A stalled runtime may send a renewal after another task has released the lease.
#[test]
fn renewal_of_replaced_task_repeats_release() {
    let mut lease = Lease::new();
    let stalled = lease.start_task(0);
    let late = lease.renewals(stalled);
    let task = lease.start_task(6);
    lease.release();
    for _ in 0..2 {
        // The second release is the repetition.
        let (calls, _) = lease.queue.due_calls(task, at(7), 64).unwrap();
        let Some(RenewalCall::Release(releases)) = calls.into_iter().next() else {
            panic!("a release is due");
        };
        lease.queue.on_released(releases, at(6), Ok(()));
    }
    assert!(lease.queue.is_settled());

    lease.queue.on_renewed(&late, at(7), Ok(()));
    let task = lease.start_task(12);
    let (calls, _) = lease.queue.due_calls(task, at(7), 64).unwrap();
    assert!(matches!(&*calls, [RenewalCall::Release(_)]));
}

#[test]
fn renewal_of_replaced_task_does_not_end_later_renewal() {
    let mut lease = Lease::new();
    let stalled = lease.start_task(0);
    let late = lease.renewals(stalled);
    let task = lease.start_task(6);
    let renewals = lease.renewals(task);
    lease.queue.on_renewed(&late, at(5), Ok(()));
    lease.release();
    assert!(lease.calls(task).is_empty());
    lease.queue.on_renewed(&renewals, at(5), Ok(()));
    assert_eq!(lease.releases(task).len(), 1);
}

/// The runtime of a task may end during a renewal.
#[test]
fn renewal_without_task_starts_another_task() {
    let mut lease = Lease::new();
    let ended = lease.start_task(0);
    let _ = lease.renewals(ended);
    lease.queue.forget(7);
    lease.queue.end_housekeeper(ended);
    let task = lease.start_task(1);
    assert!(!lease.queue.is_under_way(7));
    assert!(lease.queue.due_calls(task, at(5), 64).is_none());
}

/// A renewal without a reply may reach Redis after the release.
#[test]
fn release_during_failed_renewal_is_repeated() {
    let error = || StoreError::new(StoreErrorKind::Timeout, "no reply");
    let mut lease = Lease::new();
    let task = lease.start_task(0);
    let renewals = lease.renewals(task);
    lease.release();
    lease.queue.on_renewed(&renewals, at(5), Err(&error()));
    let releases = lease.releases(task);
    lease.queue.on_released(releases, at(5), Ok(()));
    assert!(!lease.queue.is_settled());

    // A caller that releases the lease itself waits for the end of the renewal.
    let mut lease = Lease::new();
    let task = lease.start_task(0);
    let renewals = lease.renewals(task);
    lease.queue.forget(7);
    lease.queue.on_renewed(&renewals, at(5), Err(&error()));
    assert!(!lease.queue.is_settled());
}

/// A renewal without a reply may reach Redis after a release that follows it.
#[test]
fn release_after_unanswered_renewal_is_repeated() {
    let mut lease = Lease::new();
    let task = lease.start_task(0);
    let renewals = lease.renewals(task);
    let error = StoreError::new(StoreErrorKind::Timeout, "no reply");
    lease.queue.on_renewed(&renewals, at(5), Err(&error));
    assert!(lease.queue.is_unanswered(7));
    lease.release();
    assert!(!lease.queue.is_unanswered(7));
    let releases = lease.releases(task);
    lease.queue.on_released(releases, at(5), Ok(()));
    assert!(!lease.queue.is_settled());
    let (calls, _) = lease.queue.due_calls(task, at(7), 64).unwrap();
    let Some(RenewalCall::Release(releases)) = calls.into_iter().next() else {
        panic!("the release is repeated");
    };
    lease.queue.on_released(releases, at(7), Ok(()));
    assert!(lease.queue.is_settled());
}

/// Nothing was sent, so nothing can arrive later.
#[test]
fn release_after_unsent_renewal_is_not_repeated() {
    let mut lease = Lease::new();
    let task = lease.start_task(0);
    let renewals = lease.renewals(task);
    let error = StoreError::new(StoreErrorKind::CircuitOpen, "not sent");
    lease.queue.on_renewed(&renewals, at(5), Err(&error));
    lease.release();
    let releases = lease.releases(task);
    lease.queue.on_released(releases, at(5), Ok(()));
    assert!(lease.queue.is_settled());
}

/// The renewal of a task whose runtime ended reports no end, and may reach Redis later.
#[test]
fn release_after_renewal_of_ended_runtime_is_repeated() {
    for released_first in [true, false] {
        let mut lease = Lease::new();
        let ended = lease.start_task(0);
        let _ = lease.renewals(ended);
        if released_first {
            lease.release();
        }
        lease.queue.end_housekeeper(ended);
        let task = lease.start_task(1);
        if !released_first {
            lease.release();
        }
        let releases = lease.releases(task);
        lease.queue.on_released(releases, at(5), Ok(()));
        assert!(!lease.queue.is_settled(), "released first: {released_first}");
    }
}

#[test]
fn task_waits_for_renewal_in_flight() {
    let mut lease = Lease::new();
    let task = lease.start_task(0);
    let renewals = lease.renewals(task);
    lease.queue.forget(7);
    assert!(lease.queue.due_calls(task, at(5), 64).is_some());
    lease.queue.on_renewed(&renewals, at(5), Ok(()));
    assert!(lease.queue.due_calls(task, at(5), 64).is_none());
}
