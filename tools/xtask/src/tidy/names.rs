//! A type name denotes one type in its crate, so that search and go-to-symbol find it.
//!
//! Structs, enums, unions, traits and type aliases of modules count, also within the call of a
//! macro such as `pin_project!`. Associated types, `Sealed`, test code and the `cfg(not(…))` half
//! of a pair do not.

use std::collections::BTreeMap;

use super::Finding;
use super::baseline::Key;
use super::lexer::{self, Kind, Token};
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in tree.crates() {
        let alternatives = alternatives(tree, path);
        let mut defined: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
        for file in tree.sources(path) {
            let stem = file.path.strip_suffix(".rs").unwrap_or(&file.path);
            if alternatives.iter().any(|module| module == stem) {
                continue;
            }
            for (name, line) in types(&file.code) {
                defined.entry(name).or_default().push((&file.path, line));
            }
        }
        for (name, places) in defined {
            let Some((first, _)) = places.first().filter(|_| name != "Sealed") else {
                continue;
            };
            for (file, line) in places.iter().skip(1) {
                findings.push(Finding {
                    key: Key::new("names", format!("{path}/{name}")),
                    line: *line,
                    message: format!("defined in {file} and in {first}"),
                });
            }
        }
    }
    findings
}

/// Returns the modules, as paths without `.rs`, that are compiled in place of others:
/// `#[cfg(not(feature = "x"))] mod absent;`.
fn alternatives(tree: &Tree, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.sources(path) {
        let folder = file.path.strip_suffix(".rs").unwrap_or(&file.path);
        let folder = ["/lib", "/main", "/mod"]
            .iter()
            .find_map(|root| folder.strip_suffix(root))
            .unwrap_or(folder);
        for at in 0..file.code.len() {
            if is_alternative(&file.code, at) {
                let after = lexer::matching(&file.code, at + 1) + 1;
                let names = file
                    .code
                    .get(after..)
                    .unwrap_or_default()
                    .iter()
                    .filter_map(Token::ident);
                let mut names = names.skip_while(|name| matches!(*name, "pub" | "crate" | "super"));
                if names.next() == Some("mod")
                    && let Some(name) = names.next()
                {
                    found.push(format!("{folder}/{name}"));
                }
            }
        }
    }
    found
}

/// Returns whether `#[cfg(not(…))]` starts at a token.
fn is_alternative(code: &[Token], at: usize) -> bool {
    let Some(("cfg", inside)) = lexer::attribute(code, at) else {
        return false;
    };
    inside.iter().any(|token| token.ident() == Some("not"))
}

/// Returns the types that a file defines in its modules, and where.
fn types(code: &[Token]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    // Bodies in which definitions do not count: functions, impls, traits, `macro_rules`. Modules
    // and calls of macros are entered.
    let (mut at, mut skips_next) = (0, false);
    while let Some(token) = code.get(at) {
        if lexer::attribute(code, at).is_some() {
            skips_next |= is_alternative(code, at);
            at = lexer::matching(code, at + 1) + 1;
            continue;
        }
        match &token.kind {
            Kind::Ident(keyword) if keyword == "mod" => {
                // Over its name and its opening brace.
                at += if code.get(at + 2).is_some_and(|token| token.is('{')) {
                    3
                } else {
                    2
                };
                continue;
            }
            Kind::Ident(keyword) if is_definition(keyword) => {
                if let Some(name) = code.get(at + 1).and_then(Token::ident) {
                    if !skips_next {
                        found.push((name.to_owned(), token.line));
                    }
                    skips_next = false;
                }
            }
            Kind::Punct('{')
                if at
                    .checked_sub(1)
                    .is_some_and(|before| code.get(before).is_some_and(|token| token.is('!'))) => {}
            Kind::Punct('{' | '(' | '[') => {
                at = lexer::matching(code, at) + 1;
                skips_next = false;
                continue;
            }
            Kind::Punct(';') => skips_next = false,
            _ => {}
        }
        at += 1;
    }
    found
}

fn is_definition(keyword: &str) -> bool {
    matches!(keyword, "struct" | "enum" | "union" | "trait" | "type")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let tree = Tree::of(files.iter().map(own).collect());
        check(&tree)
            .into_iter()
            .map(|finding| format!("{} {}", finding.key, finding.message))
            .collect()
    }

    #[test]
    fn duplicate_type_name_is_found() {
        let found = found(&[
            (
                "c/src/lib.rs",
                "mod a; mod b; pub struct State { a: u8 } impl State { fn b() {} }",
            ),
            ("c/src/a.rs", "mod inner { enum State { A } }"),
            ("c/src/b.rs", "type State = u8;"),
        ]);
        assert_eq!(
            found,
            [
                "c/State names defined in c/src/b.rs and in c/src/a.rs",
                "c/State names defined in c/src/lib.rs and in c/src/a.rs"
            ]
        );
    }

    #[test]
    fn types_in_calls_of_macros_are_counted() {
        let found = found(&[
            (
                "c/src/lib.rs",
                "pin_project! { #[project = StateProj] enum State { A { a: u8 } } } enum B {}",
            ),
            ("c/src/a.rs", "pin_project! { pub struct State { b: u8 } }"),
            (
                "c/src/b.rs",
                "macro_rules! types { ($a:ident) => { struct State; } } struct B;",
            ),
        ]);
        assert_eq!(
            found,
            [
                "c/B names defined in c/src/lib.rs and in c/src/b.rs",
                "c/State names defined in c/src/lib.rs and in c/src/a.rs"
            ]
        );
    }

    #[test]
    fn exempt_definitions_are_not_counted() {
        let found = found(&[
            (
                "c/src/lib.rs",
                "struct A; trait Sealed {} #[cfg(not(feature = \"x\"))] pub(crate) mod absent; #[cfg(feature = \"x\")] struct D; #[cfg(not(feature = \"x\"))] struct D;",
            ),
            (
                "c/src/a.rs",
                "impl T for A { type A = u8; } trait Sealed {} fn f() { struct A; } #[cfg(test)] mod tests { struct A; }",
            ),
            ("c/src/absent.rs", "struct A;"),
            ("d/src/lib.rs", "struct A;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
