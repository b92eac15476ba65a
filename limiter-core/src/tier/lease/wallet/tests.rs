//! The wallet's rules, by a clock that stands where each test says.

use super::*;

const AGE: u64 = 1_000_000;
const QUOTA: u64 = 1_000_000;

fn loan(amount: u64, epoch: u32) -> Loan {
    Loan {
        amount,
        epoch,
        life: AGE,
    }
}

fn with(amount: u64) -> Wallet {
    let mut wallet = Wallet::new(AGE, 1_000, 0);
    wallet.ask(1_000, QUOTA, 0);
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
    wallet.ask(0, QUOTA, 0);
    wallet.filled(loan(5_000, 2), 0, 0);
    assert_eq!(wallet.spend(7_000, 1), Some(3_000));
    let report = |epoch, spent, returned| Report {
        epoch,
        spent,
        returned,
    };
    assert_eq!(wallet.ask(0, QUOTA, 1).report, report(1, 5_000, 0));
    wallet.answered(1);
    assert_eq!(
        wallet.farewell(1).map(|ask| ask.report),
        Some(report(2, 2_000, 3_000))
    );
    assert_eq!(wallet.farewell(1), None);
    assert_eq!(wallet.held(1), 0);
}

#[test]
fn what_was_spent_comes_back_until_it_is_told_or_its_loan_ends() {
    let mut wallet = with(5_000);
    wallet.ask(0, QUOTA, 0);
    wallet.filled(loan(5_000, 2), 0, 0);
    wallet.spend(7_000, 1);
    assert_eq!(wallet.take_back(3_000, 1), 3_000);
    assert_eq!(wallet.held(1), 6_000);
    assert_eq!(
        wallet.farewell(1).map(|ask| ask.report.returned),
        Some(5_000),
        "of the later loan first"
    );
    assert_eq!(wallet.take_back(1_000, AGE), 0, "its loan is over");
    assert_eq!(wallet.take_back(9_000, 1), 4_000, "no more than was spent");
    wallet.spend(4_000, 1);
    wallet.farewell(1);
    assert_eq!(wallet.take_back(1_000, 1), 0, "it was told");
}

#[test]
fn a_call_that_is_not_covered_takes_what_is_here_along() {
    let mut wallet = with(5_000);
    wallet.spend(3_000, 1);
    let ask = wallet.ask(4_000, QUOTA, 1);
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
    let ask = wallet.ask(4_000, QUOTA, 1);
    wallet.untell(ask.report, 2);
    wallet.answered(2);
    assert_eq!(wallet.held(2), 2_000);
    let again = wallet.farewell(2);
    assert_eq!(again.map(|ask| ask.report), Some(ask.report));
    wallet.untell(ask.report, AGE);
    assert_eq!(wallet.farewell(AGE), None, "its loan is over");
    wallet.untell(Report::default(), 3);
    assert_eq!(wallet.held(3), 0);
}

#[test]
fn one_asks_at_a_time_and_not_at_once_again_where_nothing_is_to_be_had() {
    let mut wallet = Wallet::new(AGE, 1_000, 0);
    assert!(wallet.should_ask(0));
    wallet.ask(1_000, QUOTA, 0);
    assert!(!wallet.should_ask(0));
    wallet.filled(Loan::default(), 0, 10);
    assert!(!wallet.should_ask(10 + AGE / 16 - 1));
    assert!(wallet.should_ask(10 + AGE / 16));
}

#[test]
fn more_is_wanted_while_loans_are_short_lived_and_less_when_they_are_not() {
    let mut wallet = with(5_000);
    let mut wants = Vec::new();
    for pause in [1, 1, AGE / 16, AGE, AGE] {
        let now = wallet.filled_at + pause;
        wants.push(wallet.ask(0, QUOTA, now).want);
        wallet.filled(loan(1_000, 1), now, now);
    }
    assert_eq!(wants, [16_000, 32_000, 32_000, 16_000, 8_000]);
    for _ in 0..20 {
        let now = wallet.filled_at + 1;
        wallet.ask(0, QUOTA, now);
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
    assert!(wallet.farewell(300_000).is_some());
    wallet.answered(300_001);
    assert!(!wallet.is_stale(600_000));
    assert!(!wallet.is_idle(10 + AGE));
    assert!(wallet.is_idle(10 + AGE + 1));
}
