//! The dependencies between the modules of a crate.

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
    /// For each module the names that its `use` items bind, and the paths of their items.
    bindings: BTreeMap<Path, BTreeMap<String, Path>>,
    /// For each module the modules whose items its globs import.
    globs: BTreeMap<Path, Vec<Path>>,
    /// The names of the items of each module.
    items: BTreeMap<Path, BTreeSet<String>>,
}

/// The most re-exports through which a name is followed.
const MAX_REEXPORTS: usize = 8;

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
            let (mut bindings, mut globs) = (BTreeMap::new(), Vec::new());
            for declared in declared_uses(&file.code) {
                if let Some(target) = found.target(module, &declared.path) {
                    match declared.name {
                        Some(name) => drop(bindings.insert(name, target)),
                        None => globs.push(target),
                    }
                }
            }
            found.bindings.insert(module.clone(), bindings);
            found.globs.insert(module.clone(), globs);
            found.items.insert(module.clone(), items(&file.code));
        }
        found
    }

    /// Returns the path from the crate's root of a path in a module: one that starts with `crate`,
    /// `self`, `super` or a child of the module.
    fn target(&self, module: &Path, path: &[String]) -> Option<Path> {
        let first = path.first()?;
        if self.modules.contains(&joined(module, first)) {
            return Some([module.as_slice(), path].concat());
        }
        absolute(module, path)
    }

    /// Returns the children of a module, or of the root.
    pub(super) fn children(&self, of: &[String]) -> BTreeSet<&str> {
        let below = self
            .modules
            .iter()
            .filter(|module| module.len() == of.len() + 1 && module.starts_with(of));
        below
            .filter_map(|module| module.last().map(String::as_str))
            .collect()
    }

    /// Returns the root, and each module that has children.
    pub(super) fn parents(&self) -> BTreeSet<Path> {
        let parents = self
            .modules
            .iter()
            .filter_map(|module| Some(module.split_last()?.1.to_vec()));
        parents.collect()
    }

    /// Returns the child of a module that contains a path from the crate's root.
    pub(super) fn child_named(&self, parent: &Path, to: &Path) -> Option<String> {
        let name = to.strip_prefix(parent.as_slice())?.first()?;
        self.modules.contains(&joined(parent, name)).then(|| name.clone())
    }

    /// Returns all items of the crate that files name: by `crate`, `self` or `super`, by a child,
    /// or by a name that a `use` item binds. A re-exported item counts for the module that defines
    /// it.
    pub(super) fn uses(&self) -> Vec<Use<'_>> {
        let mut uses = Vec::new();
        for (from, file) in &self.files {
            for (path, line) in paths(&file.code) {
                if let Some(named) = self.named(from, &path) {
                    let to = self.defined(named);
                    uses.push(Use { file, line, from, to });
                }
            }
        }
        uses
    }

    fn named(&self, module: &Path, path: &[String]) -> Option<Path> {
        self.target(module, path).or_else(|| {
            let (first, rest) = path.split_first()?;
            Some([self.bound(module, first)?.as_slice(), rest].concat())
        })
    }

    /// Returns the path of a name that a module imports.
    fn bound(&self, module: &[String], name: &str) -> Option<Path> {
        if let Some(target) = self.bindings.get(module)?.get(name) {
            return Some(target.clone());
        }
        let has_item = |from: &&Path| {
            let is_bound = self
                .bindings
                .get(*from)
                .is_some_and(|bindings| bindings.contains_key(name));
            is_bound || self.items.get(*from).is_some_and(|items| items.contains(name))
        };
        let from = self.globs.get(module)?.iter().find(has_item)?;
        Some(joined(from, name))
    }

    /// Returns the path of an item in the module that defines it.
    fn defined(&self, mut path: Path) -> Path {
        for _ in 0..MAX_REEXPORTS {
            let is_module = |length: &usize| {
                path.get(..*length)
                    .is_some_and(|path| self.modules.contains(path))
            };
            let length = (1..=path.len()).take_while(is_module).last().unwrap_or(0);
            let (Some(module), Some(rest)) = (path.get(..length), path.get(length..)) else {
                break;
            };
            let Some((name, rest)) = rest.split_first() else {
                break;
            };
            match self.bound(module, name) {
                Some(target) => path = [target.as_slice(), rest].concat(),
                None => break,
            }
        }
        path
    }
}

fn joined(module: &[String], name: &str) -> Path {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// Returns a path from the crate's root, of one that starts with `crate`, `self` or `super`.
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

/// Returns the names of the items that a file defines, at any depth.
fn items(code: &[Token]) -> BTreeSet<String> {
    let is_definition = |keyword: &str| {
        matches!(
            keyword,
            "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static"
        )
    };
    let pairs = code.iter().zip(code.iter().skip(1));
    let named = pairs.filter(|(keyword, _)| keyword.ident().is_some_and(is_definition));
    named
        .filter_map(|(_, name)| name.ident().map(str::to_owned))
        .collect()
}

/// A path in the source.
struct SourcePath {
    path: Path,
    line: usize,
    /// The name that the path has in its module if it is imported; `None` for a glob.
    name: Option<String>,
}

/// Returns the paths of all `use` items, one for each name that is imported, and one for each glob.
fn declared_uses(code: &[Token]) -> Vec<SourcePath> {
    let mut found = Vec::new();
    for (at, token) in code.iter().enumerate() {
        if token.ident() == Some("use") {
            read_path(code, at + 1, &mut Vec::new(), &mut found);
        }
    }
    found
}

/// Returns the paths of more than one name, in `use` items and elsewhere.
fn paths(code: &[Token]) -> Vec<(Path, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = code.get(at) {
        let before = at.checked_sub(1).and_then(|before| code.get(before));
        let is_visibility = before.is_some_and(|token| token.ident() == Some("in"));
        let goes_on = before.is_some_and(|token| token.kind == Kind::PathSep || token.is('$'));
        let has_more = code.get(at + 1).is_some_and(|token| token.kind == Kind::PathSep);
        if token.ident().is_some() && has_more && !is_visibility && !goes_on {
            at = read_path(code, at, &mut Vec::new(), &mut found);
        } else {
            at += 1;
        }
    }
    found.into_iter().map(|found| (found.path, found.line)).collect()
}

/// Reads a path that may end in a group, and returns the place after it.
fn read_path(code: &[Token], mut at: usize, before: &mut Path, found: &mut Vec<SourcePath>) -> usize {
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
                    let alias = match code.get(at).and_then(Token::ident) {
                        Some("as") => code.get(at + 1).and_then(Token::ident),
                        _ => None,
                    };
                    if alias.is_some() {
                        at += 2;
                    }
                    found.push(SourcePath {
                        name: alias.map(str::to_owned).or_else(|| before.last().cloned()),
                        path: before.clone(),
                        line,
                    });
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
                found.push(SourcePath {
                    name: None,
                    path: before.clone(),
                    line,
                });
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
    fn re_exported_items_count_for_their_modules() {
        let source = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let files = [
            (
                "c/src/lib.rs",
                "mod a; mod b; mod d; pub use crate::a::Thing; pub use crate::Thing as Other;",
            ),
            ("c/src/a.rs", "mod deep; pub use self::deep::*;"),
            (
                "c/src/a/deep.rs",
                "pub struct Thing; impl Thing { pub const LIMIT: u8 = 1; }",
            ),
            (
                "c/src/b.rs",
                "use crate::Other; fn b() { Other::LIMIT; crate::Thing::LIMIT; }",
            ),
            ("c/src/d.rs", "use crate::a; fn d() { a::deep::Thing::LIMIT }"),
        ];
        let tree = Tree::of(files.iter().map(source).collect());
        let found = Crate::new(&tree, "c");
        let named = |module: &str| {
            let uses = found.uses();
            let of_module = uses.iter().filter(|found| found.from.join("::") == module);
            of_module.map(|found| found.to.join("::")).collect::<Vec<_>>()
        };
        assert_eq!(
            named("b"),
            ["a::deep::Thing", "a::deep::Thing::LIMIT", "a::deep::Thing::LIMIT"]
        );
        assert_eq!(named("d"), ["a", "a::deep::Thing::LIMIT"]);
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
