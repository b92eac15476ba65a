//! Rules of the balance, with a clock that each test sets.

use crate::redis::token_lease::balance::*;

const AGE: u64 = 1_000_000;
const QUOTA: u64 = 1_000_000;

fn grant(amount: u64, epoch: u32) -> LeaseGrant {
    LeaseGrant {
        amount,
        epoch,
        life: AGE,
    }
}

fn with(amount: u64) -> LeasedTokens {
    let mut balance = LeasedTokens::new(AGE, 1_000, 0);
    balance.refill_request(1_000, QUOTA, 0);
    balance.filled(grant(amount, 1), 0, 0);
    balance
}

#[test]
fn spending_is_bounded_by_balance() {
    let mut balance = with(5_000);
    assert_eq!(balance.spend(3_000, 1), Some(2_000));
    assert_eq!(balance.spend(3_000, 1), None);
    assert_eq!(balance.spend(2_000, 1), Some(0));
    assert_eq!(balance.spend(1, 1), None);
}

#[test]
fn grant_expires_locally_before_it_expires_in_store() {
    let mut balance = with(5_000);
    let end = AGE - AGE / 16 - MARGIN;
    assert!(balance.spend(1_000, end - 1).is_some());
    assert_eq!(balance.spend(1_000, end), None);
}

#[test]
fn older_epoch_is_spent_first_and_reported_by_number() {
    let mut balance = with(5_000);
    balance.refill_request(0, QUOTA, 0);
    balance.filled(grant(5_000, 2), 0, 0);
    assert_eq!(balance.spend(7_000, 1), Some(3_000));
    let report = |epoch, spent, returned| UsageReport {
        epoch,
        spent,
        returned,
    };
    assert_eq!(balance.refill_request(0, QUOTA, 1).report, report(1, 5_000, 0));
    balance.refill_ended(1);
    assert_eq!(
        balance.final_report(1).map(|lease_request| lease_request.report),
        Some(report(2, 2_000, 3_000))
    );
    assert_eq!(balance.final_report(1), None);
    assert_eq!(balance.held(1), 0);
}

#[test]
fn spent_tokens_are_refundable_until_report_or_expiry() {
    let mut balance = with(5_000);
    balance.refill_request(0, QUOTA, 0);
    balance.filled(grant(5_000, 2), 0, 0);
    balance.spend(7_000, 1);
    assert_eq!(balance.take_back(3_000, 1), 3_000);
    assert_eq!(balance.held(1), 6_000);
    assert_eq!(
        balance
            .final_report(1)
            .map(|lease_request| lease_request.report.returned),
        Some(5_000),
        "of the later grant first"
    );
    assert_eq!(balance.take_back(1_000, AGE), 0, "its grant has expired");
    assert_eq!(balance.take_back(9_000, 1), 4_000, "no more than was spent");
    balance.spend(4_000, 1);
    balance.final_report(1);
    assert_eq!(balance.take_back(1_000, 1), 0, "it was reported");
}

#[test]
fn uncovered_call_returns_balance() {
    let mut balance = with(5_000);
    balance.spend(3_000, 1);
    let lease_request = balance.refill_request(4_000, QUOTA, 1);
    assert_eq!(
        (
            lease_request.cost,
            lease_request.report.spent,
            lease_request.report.returned
        ),
        (4_000, 3_000, 2_000)
    );
    assert_eq!(balance.spend(1_000, 1), None, "the balance is being returned");
}

#[test]
fn failed_report_restores_balance() {
    let mut balance = with(5_000);
    balance.spend(3_000, 1);
    let lease_request = balance.refill_request(4_000, QUOTA, 1);
    balance.restore_report(lease_request.report, 2);
    balance.refill_ended(2);
    assert_eq!(balance.held(2), 2_000);
    let again = balance.final_report(2);
    assert_eq!(
        again.map(|lease_request| lease_request.report),
        Some(lease_request.report)
    );
    balance.restore_report(lease_request.report, AGE / 2);
    balance.refill_ended(AGE / 2);
    assert!(
        !balance.is_stale(AGE / 2 + AGE / 16 - 1),
        "no immediate repetition"
    );
    assert!(balance.is_stale(AGE / 2 + AGE / 16));
    balance.final_report(AGE / 2);
    balance.restore_report(lease_request.report, AGE);
    assert_eq!(balance.final_report(AGE), None, "its grant has expired");
    balance.restore_report(UsageReport::default(), 3);
    assert_eq!(balance.held(3), 0);
}

#[test]
fn refills_do_not_overlap_and_pause_after_empty_grant() {
    let mut balance = LeasedTokens::new(AGE, 1_000, 0);
    assert!(balance.should_refill(0));
    balance.refill_request(1_000, QUOTA, 0);
    assert!(!balance.should_refill(0));
    balance.filled(LeaseGrant::default(), 0, 10);
    assert!(!balance.should_refill(10 + AGE / 16 - 1));
    assert!(balance.should_refill(10 + AGE / 16));
}

#[test]
fn target_grows_with_fast_use_and_shrinks_with_slow_use() {
    let mut balance = with(5_000);
    let mut wants = Vec::new();
    for pause in [1, 1, AGE / 16, AGE, AGE] {
        let now = balance.filled_at + pause;
        wants.push(balance.refill_request(0, QUOTA, now).want);
        balance.filled(grant(1_000, 1), now, now);
    }
    assert_eq!(wants, [16_000, 32_000, 32_000, 16_000, 8_000]);
    for _ in 0..20 {
        let now = balance.filled_at + 1;
        balance.refill_request(0, QUOTA, now);
        balance.filled(grant(1_000, 1), now, now);
    }
    assert_eq!(balance.want, QUOTA, "bounded by the quota");
}

#[test]
fn unused_balance_becomes_stale_then_idle() {
    let mut balance = with(5_000);
    balance.spend(1_000, 10);
    assert!(!balance.is_stale(10 + AGE / 4));
    assert!(balance.is_stale(10 + AGE / 4 + 1));
    assert!(balance.final_report(300_000).is_some());
    balance.refill_ended(300_001);
    assert!(!balance.is_stale(600_000));
    assert!(!balance.is_idle(10 + AGE));
    assert!(balance.is_idle(10 + AGE + 1));
}

#[test]
fn call_above_balance_must_refill() {
    let mut balance = with(5_000);
    assert!(balance.must_refill(5_001, 1));
    assert!(!balance.must_refill(5_000, 1), "the balance covers it");
    assert!(!balance.must_refill(0, 1));
    balance.refill_request(6_000, QUOTA, 1);
    assert!(!balance.must_refill(6_000, 1), "another refill is pending");
    balance.refill_ended(1);
    assert!(!balance.must_refill(6_000, 1), "the balance is empty");
    let mut over = with(5_000);
    assert!(!over.must_refill(6_000, AGE), "expired tokens are useless");
    assert!(over.final_report(AGE).is_some());
}

#[test]
fn lost_refill_times_out() {
    let mut balance = LeasedTokens::new(AGE, 1_000, 0);
    balance.refill_request(1_000, QUOTA, 0);
    assert!(!balance.should_refill(REFILL_TIMEOUT - 1));
    assert!(
        !balance.is_idle(REFILL_TIMEOUT - 1),
        "a pending refill keeps the balance"
    );
    assert!(balance.should_refill(REFILL_TIMEOUT));
    assert!(balance.is_idle(REFILL_TIMEOUT));

    let mut balance = with(5_000);
    balance.spend(1_000, 1);
    balance.refill_request(0, QUOTA, 1);
    assert!(!balance.is_stale(REFILL_TIMEOUT) && balance.is_stale(REFILL_TIMEOUT + 1));
}

/// Another replica's policy may have started a longer epoch.
#[test]
fn grant_is_bounded_by_lease_duration() {
    for life in [AGE, 3 * AGE, u64::from(u32::MAX)] {
        let mut balance = LeasedTokens::new(AGE, 1_000, 0);
        balance.refill_request(0, QUOTA, 0);
        balance.filled(
            LeaseGrant {
                life,
                ..grant(5_000, 1)
            },
            0,
            10,
        );
        let end = AGE - AGE / 16 - MARGIN;
        assert_eq!((balance.held(end - 1), balance.held(end)), (5_000, 0));
    }
    let mut balance = LeasedTokens::new(AGE, 1_000, 0);
    balance.refill_request(0, QUOTA, 0);
    let short = LeaseGrant {
        life: 16_000,
        ..grant(5_000, 1)
    };
    balance.filled(short, 1_000, 2_000);
    let end = 1_000 + 15_000 - MARGIN;
    assert_eq!(
        (balance.held(end - 1), balance.held(end)),
        (5_000, 0),
        "counted from the request"
    );
}

#[test]
fn expired_grant_is_ignored() {
    let mut balance = LeasedTokens::new(AGE, 1_000, 0);
    balance.refill_request(0, QUOTA, 0);
    balance.filled(grant(5_000, 1), 0, AGE);
    assert_eq!(balance.held(AGE), 0);
    assert_eq!(balance.final_report(AGE), None);
    assert!(!balance.should_refill(AGE) && balance.should_refill(AGE + AGE / 16));
}

#[test]
fn refill_returns_fuller_epoch_and_report_older_epoch() {
    let two = |newer: u64| {
        let mut balance = with(5_000);
        balance.refill_request(0, QUOTA, 0);
        balance.filled(grant(newer, 2), 0, 0);
        balance.spend(1_000, 1);
        balance
    };
    let report = |lease_request: LeaseRequest| {
        (
            lease_request.report.epoch,
            lease_request.report.spent,
            lease_request.report.returned,
        )
    };
    assert_eq!(
        report(two(3_000).refill_request(9_000, QUOTA, 1)),
        (1, 1_000, 4_000)
    );
    assert_eq!(report(two(6_000).refill_request(90_000, QUOTA, 1)), (2, 0, 6_000));
    assert_eq!(report(two(6_000).refill_request(0, QUOTA, 1)), (1, 1_000, 0));
}

#[test]
fn grants_of_one_epoch_merge_and_expire_with_first() {
    let mut balance = with(5_000);
    balance.refill_request(0, QUOTA, 1);
    let later = LeaseGrant {
        life: AGE / 2,
        ..grant(3_000, 1)
    };
    balance.filled(later, 1, 2);
    assert_eq!(balance.held(2), 8_000);
    let end = 1 + AGE / 2 - AGE / 32 - MARGIN;
    assert_eq!((balance.held(end - 1), balance.held(end)), (8_000, 0));
    let report = balance
        .final_report(end)
        .map(|lease_request| lease_request.report.returned);
    assert_eq!(report, Some(8_000), "useless here, but not elsewhere");
}

#[test]
fn expiring_tokens_are_returned_on_busy_key() {
    let mut balance = with(5_000);
    let end = AGE - AGE / 16 - MARGIN;
    let soon = end - AGE / 16;
    balance.spend(1_000, soon);
    assert!(!balance.is_stale(soon));
    assert!(balance.is_stale(soon + 1));
    assert!(balance.should_refill(soon), "another grant is due before");
}
