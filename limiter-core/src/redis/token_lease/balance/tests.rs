//! The wallet's rules, by a clock that stands where each test says.

use crate::redis::token_lease::balance::*;

const AGE: u64 = 1_000_000;
const QUOTA: u64 = 1_000_000;

fn loan(amount: u64, epoch: u32) -> LeaseGrant {
    LeaseGrant {
        amount,
        epoch,
        life: AGE,
    }
}

fn with(amount: u64) -> LeasedTokens {
    let mut wallet = LeasedTokens::new(AGE, 1_000, 0);
    wallet.refill_request(1_000, QUOTA, 0);
    wallet.filled(loan(amount, 1), 0, 0);
    wallet
}

#[test]
fn what_is_here_is_spent_and_no_more() {
    let mut wallet = with(5_000);
    assert_eq!(wallet.spend(3_000, 1), Some(2_000));
    assert_eq!(wallet.spend(3_000, 1), None);
    assert_eq!(wallet.spend(2_000, 1), Some(0));
    assert_eq!(wallet.spend(1, 1), None);
}

#[test]
fn a_loan_ends_here_before_it_ends_at_the_store() {
    let mut wallet = with(5_000);
    let end = AGE - AGE / 16 - MARGIN;
    assert!(wallet.spend(1_000, end - 1).is_some());
    assert_eq!(wallet.spend(1_000, end), None);
}

#[test]
fn the_older_epoch_is_spent_first_and_reported_by_its_number() {
    let mut wallet = with(5_000);
    wallet.refill_request(0, QUOTA, 0);
    wallet.filled(loan(5_000, 2), 0, 0);
    assert_eq!(wallet.spend(7_000, 1), Some(3_000));
    let report = |epoch, spent, returned| UsageReport {
        epoch,
        spent,
        returned,
    };
    assert_eq!(wallet.refill_request(0, QUOTA, 1).report, report(1, 5_000, 0));
    wallet.answered(1);
    assert_eq!(
        wallet.final_report(1).map(|ask| ask.report),
        Some(report(2, 2_000, 3_000))
    );
    assert_eq!(wallet.final_report(1), None);
    assert_eq!(wallet.held(1), 0);
}

#[test]
fn what_was_spent_comes_back_until_it_is_told_or_its_loan_ends() {
    let mut wallet = with(5_000);
    wallet.refill_request(0, QUOTA, 0);
    wallet.filled(loan(5_000, 2), 0, 0);
    wallet.spend(7_000, 1);
    assert_eq!(wallet.take_back(3_000, 1), 3_000);
    assert_eq!(wallet.held(1), 6_000);
    assert_eq!(
        wallet.final_report(1).map(|ask| ask.report.returned),
        Some(5_000),
        "of the later loan first"
    );
    assert_eq!(wallet.take_back(1_000, AGE), 0, "its loan is over");
    assert_eq!(wallet.take_back(9_000, 1), 4_000, "no more than was spent");
    wallet.spend(4_000, 1);
    wallet.final_report(1);
    assert_eq!(wallet.take_back(1_000, 1), 0, "it was told");
}

#[test]
fn a_call_that_is_not_covered_takes_what_is_here_along() {
    let mut wallet = with(5_000);
    wallet.spend(3_000, 1);
    let ask = wallet.refill_request(4_000, QUOTA, 1);
    assert_eq!(
        (ask.cost, ask.report.spent, ask.report.returned),
        (4_000, 3_000, 2_000)
    );
    assert_eq!(wallet.spend(1_000, 1), None, "it is on its way back");
}

#[test]
fn what_could_not_be_told_is_here_as_before() {
    let mut wallet = with(5_000);
    wallet.spend(3_000, 1);
    let ask = wallet.refill_request(4_000, QUOTA, 1);
    wallet.restore_report(ask.report, 2);
    wallet.answered(2);
    assert_eq!(wallet.held(2), 2_000);
    let again = wallet.final_report(2);
    assert_eq!(again.map(|ask| ask.report), Some(ask.report));
    wallet.restore_report(ask.report, AGE / 2);
    wallet.answered(AGE / 2);
    assert!(!wallet.is_stale(AGE / 2 + AGE / 16 - 1), "not at once again");
    assert!(wallet.is_stale(AGE / 2 + AGE / 16));
    wallet.final_report(AGE / 2);
    wallet.restore_report(ask.report, AGE);
    assert_eq!(wallet.final_report(AGE), None, "its loan is over");
    wallet.restore_report(UsageReport::default(), 3);
    assert_eq!(wallet.held(3), 0);
}

#[test]
fn one_asks_at_a_time_and_not_at_once_again_where_nothing_is_to_be_had() {
    let mut wallet = LeasedTokens::new(AGE, 1_000, 0);
    assert!(wallet.should_ask(0));
    wallet.refill_request(1_000, QUOTA, 0);
    assert!(!wallet.should_ask(0));
    wallet.filled(LeaseGrant::default(), 0, 10);
    assert!(!wallet.should_ask(10 + AGE / 16 - 1));
    assert!(wallet.should_ask(10 + AGE / 16));
}

#[test]
fn more_is_wanted_while_loans_are_short_lived_and_less_when_they_are_not() {
    let mut wallet = with(5_000);
    let mut wants = Vec::new();
    for pause in [1, 1, AGE / 16, AGE, AGE] {
        let now = wallet.filled_at + pause;
        wants.push(wallet.refill_request(0, QUOTA, now).want);
        wallet.filled(loan(1_000, 1), now, now);
    }
    assert_eq!(wants, [16_000, 32_000, 32_000, 16_000, 8_000]);
    for _ in 0..20 {
        let now = wallet.filled_at + 1;
        wallet.refill_request(0, QUOTA, now);
        wallet.filled(loan(1_000, 1), now, now);
    }
    assert_eq!(wallet.want, QUOTA, "never more than there is");
}

#[test]
fn what_nobody_spends_is_stale_and_then_idle() {
    let mut wallet = with(5_000);
    wallet.spend(1_000, 10);
    assert!(!wallet.is_stale(10 + AGE / 4));
    assert!(wallet.is_stale(10 + AGE / 4 + 1));
    assert!(wallet.final_report(300_000).is_some());
    wallet.answered(300_001);
    assert!(!wallet.is_stale(600_000));
    assert!(!wallet.is_idle(10 + AGE));
    assert!(wallet.is_idle(10 + AGE + 1));
}

#[test]
fn a_call_beyond_what_is_here_has_to_ask_with_what_is_here() {
    let mut wallet = with(5_000);
    assert!(wallet.must_ask(5_001, 1));
    assert!(!wallet.must_ask(5_000, 1), "it is covered");
    assert!(!wallet.must_ask(0, 1));
    wallet.refill_request(6_000, QUOTA, 1);
    assert!(!wallet.must_ask(6_000, 1), "another is asking");
    wallet.answered(1);
    assert!(
        !wallet.must_ask(6_000, 1),
        "nothing is here that the store has not"
    );
    let mut over = with(5_000);
    assert!(!over.must_ask(6_000, AGE), "what is over is of no use");
    assert!(over.final_report(AGE).is_some());
}

#[test]
fn who_asks_and_is_never_heard_of_again_is_in_nobodys_way_for_long() {
    let mut wallet = LeasedTokens::new(AGE, 1_000, 0);
    wallet.refill_request(1_000, QUOTA, 0);
    assert!(!wallet.should_ask(ASKED_FOR - 1));
    assert!(!wallet.is_idle(ASKED_FOR - 1), "an answer would find no wallet");
    assert!(wallet.should_ask(ASKED_FOR));
    assert!(wallet.is_idle(ASKED_FOR));

    let mut wallet = with(5_000);
    wallet.spend(1_000, 1);
    wallet.refill_request(0, QUOTA, 1);
    assert!(!wallet.is_stale(ASKED_FOR) && wallet.is_stale(ASKED_FOR + 1));
}

/// Another replica's policy may have begun an epoch that is longer.
#[test]
fn a_loan_is_kept_no_longer_than_the_lease_says() {
    for life in [AGE, 3 * AGE, u64::from(u32::MAX)] {
        let mut wallet = LeasedTokens::new(AGE, 1_000, 0);
        wallet.refill_request(0, QUOTA, 0);
        wallet.filled(
            LeaseGrant {
                life,
                ..loan(5_000, 1)
            },
            0,
            10,
        );
        let end = AGE - AGE / 16 - MARGIN;
        assert_eq!((wallet.held(end - 1), wallet.held(end)), (5_000, 0));
    }
    let mut wallet = LeasedTokens::new(AGE, 1_000, 0);
    wallet.refill_request(0, QUOTA, 0);
    let short = LeaseGrant {
        life: 16_000,
        ..loan(5_000, 1)
    };
    wallet.filled(short, 1_000, 2_000);
    let end = 1_000 + 15_000 - MARGIN;
    assert_eq!(
        (wallet.held(end - 1), wallet.held(end)),
        (5_000, 0),
        "from when it was asked for"
    );
}

#[test]
fn a_loan_that_is_over_when_it_comes_is_no_loan() {
    let mut wallet = LeasedTokens::new(AGE, 1_000, 0);
    wallet.refill_request(0, QUOTA, 0);
    wallet.filled(loan(5_000, 1), 0, AGE);
    assert_eq!(wallet.held(AGE), 0);
    assert_eq!(wallet.final_report(AGE), None);
    assert!(!wallet.should_ask(AGE) && wallet.should_ask(AGE + AGE / 16));
}

#[test]
fn of_two_epochs_a_demand_takes_the_fuller_one_along_and_a_report_the_older() {
    let two = |newer: u64| {
        let mut wallet = with(5_000);
        wallet.refill_request(0, QUOTA, 0);
        wallet.filled(loan(newer, 2), 0, 0);
        wallet.spend(1_000, 1);
        wallet
    };
    let told = |ask: LeaseRequest| (ask.report.epoch, ask.report.spent, ask.report.returned);
    assert_eq!(
        told(two(3_000).refill_request(9_000, QUOTA, 1)),
        (1, 1_000, 4_000)
    );
    assert_eq!(told(two(6_000).refill_request(90_000, QUOTA, 1)), (2, 0, 6_000));
    assert_eq!(told(two(6_000).refill_request(0, QUOTA, 1)), (1, 1_000, 0));
}

#[test]
fn loans_of_one_epoch_are_one_and_end_with_the_first_of_them() {
    let mut wallet = with(5_000);
    wallet.refill_request(0, QUOTA, 1);
    let later = LeaseGrant {
        life: AGE / 2,
        ..loan(3_000, 1)
    };
    wallet.filled(later, 1, 2);
    assert_eq!(wallet.held(2), 8_000);
    let end = 1 + AGE / 2 - AGE / 32 - MARGIN;
    assert_eq!((wallet.held(end - 1), wallet.held(end)), (8_000, 0));
    let told = wallet.final_report(end).map(|ask| ask.report.returned);
    assert_eq!(told, Some(8_000), "of no use here, but elsewhere");
}

#[test]
fn what_soon_ends_is_given_back_though_the_key_is_busy() {
    let mut wallet = with(5_000);
    let end = AGE - AGE / 16 - MARGIN;
    let soon = end - AGE / 16;
    wallet.spend(1_000, soon);
    assert!(!wallet.is_stale(soon));
    assert!(wallet.is_stale(soon + 1));
    assert!(wallet.should_ask(soon), "another loan is due before");
}
