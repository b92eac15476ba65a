//! The arguments of the attributes as readable text: removing or renaming one breaks callers.
//!
//! `LIMITER_FROZEN=write cargo test -p limiter-macros frozen` updates the file.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use crate::argument_table::{AttributeKind, TABLE};

#[test]
fn attribute_arguments_are_frozen() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../limiter-core/tests/frozen/attributes.txt");
    let mut page = String::new();
    for kind in AttributeKind::ALL {
        writeln!(page, "{}:", kind.name()).unwrap();
        for row in TABLE.iter().filter(|row| row.is_of(kind)) {
            writeln!(page, "  {}", row.example).unwrap();
        }
    }
    if env::var_os("LIMITER_FROZEN").is_some_and(|value| value == "write") {
        fs::write(&path, &page).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(page, expected, "{}", path.display());
}
