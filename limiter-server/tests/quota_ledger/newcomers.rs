//! A new holder beside many others, and more holders than a record contains.

use limiter_server::gateway::quota::ledger::{HolderId, QuotaLedger};
use limiter_server::gateway::quota::record;

use super::{SECOND, Subject};

/// The most bytes of the data of a lease.
const MAX_DATA_BYTES: usize = 65_536;

/// Makes a step in each of these seconds, in which all holders report a demand.
fn run(subject: &Subject, holders: &[HolderId], (seconds, demand): (u64, u64)) -> QuotaLedger {
    let report = |ledger: &mut QuotaLedger| {
        for holder in holders {
            ledger.report(*holder, demand);
        }
    };
    for _ in 1..seconds {
        subject.assign(|_| true, report);
        subject.advance(SECOND);
    }
    subject.assign(|_| true, report).1
}

#[test]
fn new_holder_beside_many_receives_a_share() {
    // The shares of the others are whole, so that nothing remains unassigned.
    for (others, demand) in [
        (8, SECOND),
        (16, SECOND),
        (32, 1_000 * SECOND),
        (64, 1_000 * SECOND),
    ] {
        let subject = Subject::new(1_024, 1_024);
        let holders: Vec<HolderId> = (0..=others).collect();
        let (newcomer, known) = holders.split_last().unwrap();
        let ledger = run(&subject, known, (60, demand));
        assert_eq!(ledger.holders().len(), known.len(), "{others}");
        let ledger = run(&subject, &holders, (10, demand));
        let rate = ledger.assigned(newcomer).map_or(0, |bucket| bucket.rate());
        let fair = 960 * SECOND / (others + 1);
        assert!(rate > fair / 2, "{rate} of {fair} beside {others}");
    }
}

#[test]
fn holders_above_the_size_of_the_record_do_not_end_the_assignments_of_others() {
    let subject = Subject::new(1_000_000, 1_000_000);
    // Times of the present and ids of streams have more bytes than those of other tests.
    subject.advance(1_800_000_000 * SECOND);
    let holders: Vec<HolderId> = (0..2_000).map(|number| HolderId::MAX - number).collect();
    let ledger = run(&subject, &holders, (20, u64::MAX));
    assert!(ledger.holders().len() > 500, "{}", ledger.holders().len());
    let bytes = record::encode(&ledger).len();
    assert!(bytes <= MAX_DATA_BYTES, "{bytes}");
}
