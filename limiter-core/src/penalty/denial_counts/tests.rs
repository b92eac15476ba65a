use super::*;
use crate::policy::Penalty;

fn denied(key: &str, penalty: &str) -> DeniedLimit {
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate(1)
        .penalty(penalty.parse::<Penalty>())
        .build()
        .unwrap();
    let key = Key::from(key).into_owned();
    DeniedLimit {
        identity: policy.identity(None, key.as_str()),
        policy,
        key,
    }
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(1_000_000_000 + micros)
}

/// Denials by their timestamps, as given to [`at`].
fn dated<const N: usize>(denials: [(u64, u32); N]) -> Vec<DatedDenials> {
    denials
        .map(|(micros, number)| DatedDenials {
            at: at(micros),
            number,
        })
        .to_vec()
}

#[test]
fn denials_are_batched_unless_they_may_block() {
    let (counts, ann) = (DenialCounts::default(), denied("ann", "3 in 1m: 5m"));
    assert_eq!(counts.record(&ann, at(0)), PenaltyAction::ScheduleReport);
    assert_eq!(counts.record(&ann, at(1)), PenaltyAction::None);
    let bob = denied("bob", "3 in 1m: 5m");
    assert_eq!(counts.record(&bob, at(1)), PenaltyAction::ScheduleReport);
    let three = dated([(0, 1), (1, 1), (2, 1)]);
    assert_eq!(counts.record(&ann, at(2)), PenaltyAction::Report(three));
    assert!(counts.take_unreported(ann.identity, at(3)).is_none());
    // Another replica has reported one.
    assert_eq!(counts.mark_reported(ann.identity, 2, at(3)), None);
    assert_eq!(counts.record(&ann, at(4)), PenaltyAction::ScheduleReport);
    let two = dated([(4, 1), (5, 1)]);
    assert_eq!(counts.record(&ann, at(5)), PenaltyAction::Report(two.clone()));
    counts.restore(ann.identity, two);
    let three = dated([(4, 1), (5, 1), (7, 1)]);
    assert_eq!(counts.record(&ann, at(7)), PenaltyAction::Report(three));
}

/// While a report is under way, its denials count as received.
#[test]
fn denials_during_report_are_reported_if_they_may_block() {
    let (counts, ann) = (DenialCounts::default(), denied("ann", "3 in 1m: 5m"));
    assert_eq!(counts.record(&ann, at(0)), PenaltyAction::ScheduleReport);
    assert!(counts.take_unreported(ann.identity, at(1)).is_some());
    assert_eq!(counts.record(&ann, at(2)), PenaltyAction::ScheduleReport);
    // The reply names one less than is assumed here, because another replica has reported.
    let one = dated([(2, 1)]);
    assert_eq!(counts.mark_reported(ann.identity, 1, at(3)), Some(one));
}

#[test]
fn next_denial_reports_overdue_and_drops_expired_denials() {
    let (counts, ann) = (DenialCounts::default(), denied("ann", "9 in 1m: 5m"));
    assert_eq!(counts.record(&ann, at(0)), PenaltyAction::ScheduleReport);
    let two = dated([(0, 1), (2_000_001, 1)]);
    assert_eq!(counts.record(&ann, at(2_000_001)), PenaltyAction::Report(two));
    assert_eq!(counts.record(&ann, at(3_000_000)), PenaltyAction::ScheduleReport);
    let late = counts.record(&ann, at(63_000_000));
    assert_eq!(late, PenaltyAction::ScheduleReport, "the earlier one has expired");
    let (_, denials) = counts.take_unreported(ann.identity, at(63_000_001)).unwrap();
    assert_eq!(denials, dated([(63_000_000, 1)]));
}

#[test]
fn memory_is_bounded() {
    let counts = DenialCounts::default();
    let many = |from: usize, now| {
        let keys = (from..from + MAX_KEYS).map(|key| denied(&key.to_string(), "9 in 1s: 5m"));
        keys.filter(|denied| counts.record(denied, now) == PenaltyAction::ScheduleReport)
            .count()
    };
    assert_eq!(many(0, at(0)), MAX_KEYS);
    assert_eq!(many(MAX_KEYS, at(1)), 0, "each denial is reported separately");
    assert_eq!(many(MAX_KEYS, at(1_000_001)), MAX_KEYS, "the others have expired");
    assert!(counts.lock().by_limit.len() <= MAX_KEYS);

    let (counts, ann) = (DenialCounts::default(), denied("ann", "1000 in 1m: 5m"));
    let reports = (0..1_000).filter_map(|micros| match counts.record(&ann, at(micros)) {
        PenaltyAction::Report(denials) => Some(denials.len()),
        _ => None,
    });
    let reports: Vec<_> = reports.collect();
    let rest = 1_000 - 7 * MAX_MOMENTS;
    assert_eq!(reports[..7], [MAX_MOMENTS; 7]);
    assert_eq!(reports[7..], [rest], "the thousandth may block");
}
