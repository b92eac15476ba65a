//! The number of names at the root of a library: most users type no others.
//!
//! Public modules, macros and names under `#[cfg(doctest)]` do not count.

use super::Finding;
use super::baseline::Key;
use super::lexer::{self, Kind, Token};
use super::tree::{File, Tree};

/// The root files with their bounds.
const BOUNDS: [(&str, usize); 2] = [("limiter-core/src/lib.rs", 30), ("limiter-tower/src/lib.rs", 20)];

/// Returns each public name beyond the bound of its root.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, bound) in BOUNDS {
        let names = tree.files.iter().find(|file| file.path == path).map(names);
        let names = names.unwrap_or_default();
        for (name, line) in names.iter().skip(bound) {
            findings.push(Finding {
                key: Key::new("roots", path),
                line: *line,
                message: format!("`{name}`: the root has {} names, at most {bound}", names.len()),
            });
        }
    }
    findings
}

/// Returns the names that a root re-exports or defines, with their lines.
fn names(file: &File) -> Vec<(String, usize)> {
    let (mut found, mut at) = (Vec::new(), 0);
    let code = &file.code;
    while let Some(token) = code.get(at) {
        if let Some((_, inside)) = lexer::attribute(code, at) {
            let is_for_doctests = inside.iter().any(|token| token.ident() == Some("doctest"));
            at = lexer::matching(code, at + 1) + 1;
            if is_for_doctests {
                at = end_of_item(code, at);
            }
        } else if token.ident() == Some("pub") && !code.get(at + 1).is_some_and(|next| next.is('(')) {
            let end = end_of_item(code, at);
            let item = code.get(at + 1..end).unwrap_or_default();
            found.extend(item_names(item).into_iter().map(|name| (name, token.line)));
            at = end;
        } else if matches!(token.kind, Kind::Punct('{')) {
            at = lexer::matching(code, at) + 1;
        } else {
            at += 1;
        }
    }
    found
}

/// Returns the place after an item: after its semicolon or its block.
fn end_of_item(code: &[Token], mut at: usize) -> usize {
    let is_use = code.get(at + 1).and_then(Token::ident) == Some("use");
    while let Some(token) = code.get(at) {
        match token.kind {
            Kind::Punct(';') => return at + 1,
            Kind::Punct('{') if !is_use => return lexer::matching(code, at) + 1,
            Kind::Punct('{' | '(' | '[') => at = lexer::matching(code, at) + 1,
            _ => at += 1,
        }
    }
    at
}

/// Returns the names of a public item: of a re-export the last names of its paths; none of a module
/// or of the macros.
fn item_names(item: &[Token]) -> Vec<String> {
    let ident = |at: usize| item.get(at).and_then(Token::ident);
    match ident(0) {
        Some("use") if ident(1) != Some("limiter_macros") => {
            let is_last = |at: usize| {
                let next = item.get(at + 1);
                next.is_none_or(|next| next.is(',') || next.is('}') || next.is(';'))
            };
            let places = (1..item.len()).filter(|at| is_last(*at));
            places.filter_map(|at| ident(at).map(str::to_owned)).collect()
        }
        Some("use" | "mod") => Vec::new(),
        _ => ident(1).map(str::to_owned).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_above_the_bound_are_found() {
        let used = (0..19)
            .map(|number| format!("A{number}"))
            .collect::<Vec<_>>()
            .join(", ");
        let text = format!(
            "pub mod key; mod b; pub(crate) use b::C; pub use b::{{{used}}}; pub use crate::d::E as F;\n\
             pub use limiter_macros::{{x, y}}; pub mod g {{ pub use crate::h::I; }}\n\
             #[cfg(doctest)] #[doc = \"a\"] pub struct Page;\n\
             pub struct J {{ pub a: u8 }}\n"
        );
        let tree = Tree::of(vec![("limiter-tower/src/lib.rs".to_owned(), text)]);
        let found: Vec<_> = check(&tree)
            .into_iter()
            .map(|finding| format!("{} {}", finding.key, finding.message))
            .collect();
        assert_eq!(
            found,
            ["limiter-tower/src/lib.rs roots `J`: the root has 21 names, at most 20"]
        );
    }
}
