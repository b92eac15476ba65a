use std::time::Duration;

use crate::registry::sources::*;

fn windowed(generation: u32, window: &str) -> PolicyEntry {
    let policy = Policy::sliding_window("p").limit(5).window(window).build();
    PolicyEntry::new(policy.expect("valid").with_generation(generation))
}

#[test]
fn retired_generation_is_kept_while_older_usage_counts() {
    let (mut sources, now) = (SourceStack::default(), Timestamp::from_micros(1));
    let remembered = |sources: &mut SourceStack, at| {
        // Names of other policies.
        for number in 0..1_000 {
            sources.left.record(&number.to_string(), 1, at, at);
        }
        sources.generation_in_code("p")
    };
    let hours = |hours: u64| now.after(Duration::from_secs(3_600 * hours));
    assert!(sources.set_in_code(windowed(0, "10h"), now));
    assert!(sources.set_in_code(windowed(1, "1s"), hours(1)));
    assert_eq!(sources.remove_from_code("p", hours(2)), (true, false));
    assert_eq!(
        remembered(&mut sources, hours(20)),
        Some(1),
        "the generation from before the reset"
    );
    assert_eq!(remembered(&mut sources, hours(22)), None);

    // This entry ended long ago.
    assert!(sources.set_in_code(windowed(3, "1s").until(hours(23)), hours(22)));
    assert_eq!(sources.remove_from_code("p", hours(40)), (true, false));
    assert_eq!(remembered(&mut sources, hours(40)), None);
}
