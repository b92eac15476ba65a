//! Callers beside the Envoys use the rest of the rate, and do not stop the division.

use super::support::quota_bucket::EnvoyBucket;
use super::{SECOND, Subject, demand};

/// Envoys with a demand of 2,000/s and direct calls at `per_second` for some seconds. Returns the
/// calls that Envoys and callers admitted.
fn run(subject: &Subject, envoys: &mut [EnvoyBucket], (seconds, per_second): (u64, u64)) -> (u64, u64) {
    let holders: Vec<u64> = (0..).take(envoys.len()).collect();
    let (mut by_envoys, mut direct) = (0, 0);
    for tick in 0..seconds * 1_000 {
        let now = subject.now();
        if tick.is_multiple_of(1_000) {
            let (assignments, _) = subject.assign(|_| true, demand(&holders));
            for assignment in assignments {
                let envoy = &mut envoys[usize::try_from(assignment.holder).unwrap()];
                envoy.arriving.push((now + SECOND / 10, assignment.bucket));
            }
        }
        for envoy in &mut *envoys {
            envoy.advance(now);
            by_envoys += envoy.request(2);
        }
        // Calls are spread over the second.
        if (tick % 1_000 * per_second) % 1_000 < per_second {
            direct += subject.call(1);
        }
        subject.advance(SECOND / 1_000);
    }
    (by_envoys, direct)
}

#[test]
fn direct_calls_are_allowed_beside_saturated_envoys() {
    let subject = Subject::new(1_000, 1_000);
    let mut envoys = vec![EnvoyBucket::default()];
    run(&subject, &mut envoys, (5, 30));
    let (by_envoys, direct) = run(&subject, &mut envoys, (30, 30));
    assert!(direct >= 30 * 30 * 95 / 100, "{direct}");
    assert!(by_envoys >= 30 * 970 * 9 / 10, "{by_envoys}");
    // A second Envoy receives its share meanwhile.
    envoys.push(EnvoyBucket::default());
    let (_, direct) = run(&subject, &mut envoys, (10, 30));
    assert!(direct >= 10 * 30 * 95 / 100, "{direct}");
    let (_, ledger) = subject.assign(|_| true, |_| ());
    let rates = [0, 1].map(|holder| ledger.assigned(&holder).map_or(0, |bucket| bucket.rate()));
    assert!(
        rates
            .iter()
            .all(|rate| (400_000_000..=500_000_000).contains(rate)),
        "{rates:?}"
    );
}

#[test]
fn frequent_direct_calls_lose_no_refill() {
    let subject = Subject::new(1_000_000, 1_000_000);
    let mut envoys = vec![EnvoyBucket::default()];
    run(&subject, &mut envoys, (5, 0));
    // One sixteenth of the rate is left, and is used up by two calls in each millisecond.
    let mut direct = 0;
    for tick in 0..20_000_u64 {
        if tick.is_multiple_of(2_000) {
            subject.assign(|_| true, demand(&[0]));
        }
        direct += subject.call(31);
        subject.advance(SECOND / 2_000);
    }
    assert!(direct >= 10 * 62_000 * 95 / 100, "{direct}");
}
