use crate::error::*;

#[test]
fn repeated_cause_is_formatted_once() {
    let refused = || std::io::Error::other("connection refused");
    let text = |detail: &str| {
        let error = StoreError::new(StoreErrorKind::Connection, detail).with_source(refused());
        error.with_causes().to_string()
    };
    assert_eq!(text("cannot connect"), "cannot connect: connection refused");
    assert_eq!(
        text("cannot connect: connection refused"),
        "cannot connect: connection refused"
    );
}

#[test]
fn long_or_escaped_value_is_truncated() {
    let error = ConfigError::invalid("key", "x".repeat(100_000), "fewer bytes");
    assert!(error.to_string().len() < 300);
    assert!(error.to_string().contains("100000 bytes"));
    let error = ConfigError::invalid("amount", "1\nERROR forged\u{1b}[0m", "a number");
    assert_eq!(
        error.to_string(),
        r"amount is `1\nERROR forged\u{1b}[0m`, expected a number"
    );
}

#[test]
fn shown_value_is_bounded_in_written_bytes() {
    for character in ['x', '\u{1b}', '\n', '\u{9f}', 'é', '€', '🦀'] {
        let text = character.to_string().repeat(256);
        let shown = Bounded(&text).to_string();
        let (beginning, rest) = shown.split_once('…').unwrap();
        assert!((231..=240).contains(&beginning.len()), "{shown}");
        assert_eq!(rest, format!(" ({} bytes)", text.len()));
        assert!(!shown.contains(char::is_control));
    }
    let whole = "€".repeat(80);
    assert_eq!(Bounded(&whole).to_string(), whole);
    assert_eq!(Bounded("").to_string(), "");
}

#[test]
fn error_with_long_escaped_policy_name_is_bounded() {
    let name = "\u{1b}".repeat(256);
    let error = ConfigError::invalid("capacity", "\n".repeat(100_000), "a number");
    let error = error.for_policy(&name).of_policy(&name);
    assert!(error.to_string().len() < 1_000);
    let repeated = ConfigError::RepeatedLimit { policy: name.clone() };
    assert!(repeated.to_string().len() < 400);
    let groups = ConfigError::DifferentGroups {
        first: name.clone(),
        other: name.clone(),
    };
    assert!(groups.to_string().len() < 1_000);
}
