//! Which modules of a crate name which others.

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{Kind, Token};
use super::tree::{File, Tree};

/// A path of names from the crate's root.
pub(super) type Path = Vec<String>;

/// The modules of a crate.
#[derive(Debug, Default)]
pub(super) struct Crate<'a> {
    files: Vec<(Path, &'a File)>,
    modules: BTreeSet<Path>,
    /// For each module the names that it re-exports, and the child from which.
    exports: BTreeMap<Path, BTreeMap<String, String>>,
}

/// A file names an item of a module.
#[derive(Debug)]
pub(super) struct Use<'a> {
    pub(super) file: &'a File,
    pub(super) line: usize,
    /// The module of the file, and the path that it names.
    pub(super) from: &'a Path,
    pub(super) to: Path,
}

impl<'a> Crate<'a> {
    pub(super) fn new(tree: &'a Tree, path: &'a str) -> Self {
        let mut found = Self::default();
        for file in tree.sources(path).filter(|file| !file.code.is_empty()) {
            let module: Path = file.module().into_iter().map(str::to_owned).collect();
            for length in 1..=module.len() {
                found.modules.extend(module.get(..length).map(<[String]>::to_vec));
            }
            found.files.push((module, file));
        }
        for (module, file) in &found.files {
            let mut exports = BTreeMap::new();
            for (path, _) in declared_uses(&file.code) {
                let mut names = path.iter();
                let first = names
                    .next()
                    .filter(|name| *name == "self")
                    .map_or(path.first(), |_| names.next());
                if let (Some(child), Some(name)) = (first, path.last())
                    && found.modules.contains(&joined(module, child))
                {
                    exports.insert(name.clone(), child.clone());
                }
            }
            found.exports.insert(module.clone(), exports);
        }
        found
    }

    /// The children of a module, or of the root.
    pub(super) fn children(&self, of: &[String]) -> BTreeSet<&str> {
        let below = self
            .modules
            .iter()
            .filter(|module| module.len() == of.len() + 1 && module.starts_with(of));
        below
            .filter_map(|module| module.last().map(String::as_str))
            .collect()
    }

    /// The root, and each module that has children.
    pub(super) fn parents(&self) -> BTreeSet<Path> {
        let parents = self
            .modules
            .iter()
            .filter_map(|module| Some(module.split_last()?.1.to_vec()));
        parents.collect()
    }

    /// The child of a module in which a path from the crate's root ends up, also through a
    /// re-export by the module.
    pub(super) fn child_named(&self, parent: &Path, to: &Path) -> Option<String> {
        let name = to.strip_prefix(parent.as_slice())?.first()?;
        if self.modules.contains(&joined(parent, name)) {
            return Some(name.clone());
        }
        self.exports.get(parent)?.get(name).cloned()
    }

    /// All paths that files name by `crate`, `self` or `super`.
    pub(super) fn uses(&self) -> Vec<Use<'_>> {
        let mut uses = Vec::new();
        for (module, file) in &self.files {
            for (path, line) in paths(&file.code) {
                if let Some(to) = absolute(module, &path) {
                    let from = module;
                    uses.push(Use { file, line, from, to });
                }
            }
        }
        uses
    }
}

fn joined(module: &[String], name: &str) -> Path {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// A path from the crate's root, of one that starts with `crate`, `self` or `super`.
fn absolute(module: &[String], path: &[String]) -> Option<Path> {
    let (first, rest) = path.split_first()?;
    let (mut base, mut rest) = match first.as_str() {
        "crate" => (Vec::new(), rest),
        "self" => (module.to_vec(), rest),
        "super" => (module.split_last()?.1.to_vec(), rest),
        _ => return None,
    };
    while let Some((first, others)) = rest.split_first()
        && first == "super"
    {
        base.pop()?;
        rest = others;
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// The paths of all `use` items, one for each name that is imported.
fn declared_uses(code: &[Token]) -> Vec<(Path, usize)> {
    let mut found = Vec::new();
    for (at, token) in code.iter().enumerate() {
        if token.ident() == Some("use") {
            read_path(code, at + 1, &mut Vec::new(), &mut found);
        }
    }
    found
}

/// The paths that start with `crate`, `self` or `super`, in `use` items and elsewhere.
fn paths(code: &[Token]) -> Vec<(Path, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = code.get(at) {
        let before = at.checked_sub(1).and_then(|before| code.get(before));
        let is_visibility = before.is_some_and(|token| token.ident() == Some("in"));
        let goes_on = before.is_some_and(|token| token.kind == Kind::PathSep || token.is('$'));
        let is_start = matches!(token.ident(), Some("crate" | "self" | "super"));
        let has_more = code.get(at + 1).is_some_and(|token| token.kind == Kind::PathSep);
        if is_start && has_more && !is_visibility && !goes_on {
            at = read_path(code, at, &mut Vec::new(), &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads a path that may end in a group, and returns the place after it.
fn read_path(code: &[Token], mut at: usize, before: &mut Path, found: &mut Vec<(Path, usize)>) -> usize {
    let length = before.len();
    let line = code.get(at).map_or(0, |token| token.line);
    while let Some(token) = code.get(at) {
        match &token.kind {
            Kind::Ident(name) => {
                // `self` in a group is the path so far.
                if name != "self" || before.is_empty() {
                    before.push(name.clone());
                }
                at += 1;
                if code.get(at).is_none_or(|token| token.kind != Kind::PathSep) {
                    found.push((before.clone(), line));
                    if code.get(at).and_then(Token::ident) == Some("as") {
                        at += 2;
                    }
                    break;
                }
            }
            Kind::PathSep => at += 1,
            Kind::Punct('{') => {
                at += 1;
                while code.get(at).is_some_and(|token| !token.is('}')) {
                    at = read_path(code, at, before, found);
                    if code.get(at).is_some_and(|token| token.is(',')) {
                        at += 1;
                    }
                }
                at += 1;
                break;
            }
            // A glob, the generics of `::<…>`, or no path after all.
            _ => {
                found.push((before.clone(), line));
                at += 1;
                break;
            }
        }
    }
    before.truncate(length);
    at
}

#[cfg(test)]
mod tests {
    use super::super::lexer::tokens;
    use super::*;

    fn named(source: &str) -> Vec<String> {
        paths(&tokens(source))
            .into_iter()
            .map(|(path, _)| path.join("::"))
            .collect()
    }

    #[test]
    fn paths_are_found_in_imports_and_expressions() {
        let source = "use crate::a::{b, c::{self, D as E}, F}; fn g() { super::h::I::new(); self::j::<K>() }";
        assert_eq!(
            named(source),
            [
                "crate::a::b",
                "crate::a::c",
                "crate::a::c::D",
                "crate::a::F",
                "super::h::I::new",
                "self::j"
            ]
        );
    }

    #[test]
    fn visibility_and_macro_paths_are_no_uses() {
        assert!(named("pub(in crate::a) fn b(self) {} pub(crate) struct C; $crate::d::e!()").is_empty());
    }

    #[test]
    fn paths_are_resolved_from_the_module() {
        let module = ["a", "b"].map(str::to_owned);
        let resolve = |path: &str| {
            let path: Vec<_> = path.split("::").map(str::to_owned).collect();
            absolute(&module, &path).map(|path| path.join("::"))
        };
        assert_eq!(resolve("crate::x::Y").as_deref(), Some("x::Y"));
        assert_eq!(resolve("self::Y").as_deref(), Some("a::b::Y"));
        assert_eq!(resolve("super::c::Y").as_deref(), Some("a::c::Y"));
        assert_eq!(resolve("super::super::Y").as_deref(), Some("Y"));
        assert_eq!(resolve("std::Y"), None);
    }
}
