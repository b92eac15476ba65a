//! The log of the images of the guide.

use std::fmt::Write as _;

/// The policy of the log.
pub(crate) const POLICIES: &str =
    "[policy.search]\nalgorithm = 'token_bucket'\ncapacity = 60\nrate = '2/s'\n";

/// Two hours of forty steady clients, and one that sends bursts in the second hour.
pub(crate) fn log() -> String {
    let (mut log, mut random) = (String::new(), 7_u64);
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for second in 0..7_200_u64 {
        let at = 1_767_268_800 + second;
        // The load rises and falls once in two hours.
        let busy = 4 + (3_600 - second.abs_diff(3_600)) / 600;
        for _ in 0..busy {
            writeln!(log, "ts={at} user=user-{}", next(40)).unwrap();
        }
        if second > 3_600 && second % 900 < 120 {
            for _ in 0..4 + next(5) {
                writeln!(log, "ts={at} user=export-job").unwrap();
            }
        }
    }
    log
}
