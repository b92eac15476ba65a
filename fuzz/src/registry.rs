//! Registries of policies as text: what is accepted is written as the same, what is refused is
//! refused at places of the text.

use limiter_core::registry::{PolicyRegistry, RegistryError};

/// Reads a text.
pub fn check(text: &str) {
    match PolicyRegistry::from_toml(text) {
        Ok(registry) => {
            let written = registry.to_toml();
            let read = PolicyRegistry::from_toml(&written);
            let read = read.unwrap_or_else(|error| panic!("what was written is refused: {error}\n{written}"));
            assert_eq!(read.to_toml(), written);
            assert_eq!(read.names(), registry.names());
            for name in registry.names() {
                assert_eq!(read.get(&name), registry.get(&name));
                assert_eq!(read.overrides(&name), registry.overrides(&name));
            }
        }
        Err(RegistryError::Mistakes { mistakes }) => {
            assert!(!mistakes.is_empty());
            for mistake in mistakes {
                let line = text
                    .split('\n')
                    .nth(mistake.line() - 1)
                    .expect("a line of the text");
                assert!(mistake.column() <= line.chars().count() + 1, "{mistake}");
                assert!(mistake.to_string().len() < 2_000, "{mistake}");
            }
        }
        Err(other) => panic!("{other}"),
    }
}
