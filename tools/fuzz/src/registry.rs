//! Registries of policies as text: an accepted text survives writing and reading, and each error
//! has a position inside the text.

use limiter_core::registry::{PolicyRegistry, RegistryError};

/// Reads a text.
pub fn check(text: &str) {
    match PolicyRegistry::from_toml(text) {
        Ok(registry) => {
            let written = registry.to_toml();
            let read = PolicyRegistry::from_toml(&written);
            let read =
                read.unwrap_or_else(|error| panic!("the written text is rejected: {error}\n{written}"));
            assert_eq!(read.to_toml(), written);
            assert_eq!(read.names(), registry.names());
            for name in registry.names() {
                assert_eq!(read.get(&name), registry.get(&name));
                assert_eq!(read.overrides(&name), registry.overrides(&name));
            }
        }
        Err(RegistryError::Parse { errors }) => {
            assert!(!errors.is_empty());
            for error in errors {
                let line = text
                    .split('\n')
                    .nth(error.line() - 1)
                    .expect("a line of the text");
                assert!(error.column() <= line.chars().count() + 1, "{error}");
                assert!(error.to_string().len() < 2_000, "{error}");
            }
        }
        Err(other) => panic!("{other}"),
    }
}
