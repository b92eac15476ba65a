//! The layers of a crate: which of its modules may name which others, and cycles between siblings.
//!
//! `layers.txt` lists the modules of a crate from the bottom to the top. A module may name modules
//! of lines below its own. Files below `src/a/` belong to the module `a`. Names that the crate's
//! root re-exports count as their modules. A section may list the modules of a folder in the same
//! way. The modules of all other folders must not form a cycle.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::baseline::Key;
use super::modules::{Crate, Path};
use super::tree::Tree;

/// Modules of one folder, each with the number of its layer.
type Layers = BTreeMap<String, usize>;

/// The layers of folders. A folder is a crate and the path of a module, which is empty for the
/// crate's root.
#[derive(Debug, Default)]
pub(super) struct Table(BTreeMap<(String, Path), Layers>);

impl Table {
    /// Reads sections `[crate]` and `[crate module::path]` of lines of modules, the lowest layer
    /// first. `#` starts a comment.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut table = Self::default();
        let mut current = None;
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                let (name, module) = name.split_once(' ').unwrap_or((name, ""));
                let module = module.split("::").filter(|name| !name.is_empty());
                let folder = (name.to_owned(), module.map(str::to_owned).collect());
                current = Some(table.0.entry(folder).or_default());
                continue;
            }
            for module in line.split_whitespace() {
                let section = current
                    .as_mut()
                    .ok_or("layers.txt: a module before the first [crate]")?;
                if section.insert(module.to_owned(), number).is_some() {
                    return Err(format!("layers.txt: `{module}` is listed twice"));
                }
            }
        }
        Ok(table)
    }
}

/// Imports that point up, and siblings in cycles. A module that the table does not list is an
/// error, and so is a listed module that does not exist.
pub(super) fn check(tree: &Tree, table: &Table) -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    for path in tree.crates() {
        let modules = Crate::new(tree, path);
        for ((_, parent), layers) in table.0.iter().filter(|((name, _), _)| name == path) {
            let children = modules.children(parent);
            let missing: Vec<_> = children
                .iter()
                .copied()
                .filter(|module| !layers.contains_key(*module))
                .collect();
            let folder = || [&[path.to_owned()], parent.as_slice()].concat().join("::");
            if !missing.is_empty() {
                let folder = folder();
                return Err(format!(
                    "modules of {folder} that are not in tools/xtask/tidy/layers.txt: `{}`; add each to a layer",
                    missing.join("`, `")
                ));
            }
            let removed: Vec<_> = layers
                .keys()
                .map(String::as_str)
                .filter(|module| !children.contains(module))
                .collect();
            if !removed.is_empty() {
                return Err(format!(
                    "tools/xtask/tidy/layers.txt lists modules of {} that do not exist: `{}`; remove them",
                    folder(),
                    removed.join("`, `")
                ));
            }
            findings.extend(upward(&modules, parent, layers));
        }
        findings.extend(cycles(&modules, path));
    }
    Ok(findings)
}

fn upward(modules: &Crate<'_>, parent: &Path, layers: &Layers) -> Vec<Finding> {
    let mut findings = Vec::new();
    for named in modules.uses() {
        let from = named.from.strip_prefix(parent.as_slice());
        let Some((from, to)) = from
            .and_then(<[String]>::first)
            .zip(modules.child_named(parent, &named.to))
        else {
            continue;
        };
        if *from != to && layers.get(from) <= layers.get(&to) {
            findings.push(Finding {
                key: Key::new("layers", &named.file.path),
                line: named.line,
                message: format!("`{from}` is not above `{to}`, and names {}", named.to.join("::")),
            });
        }
    }
    findings
}

/// Returns one finding for each module that is in a cycle with a sibling, under the path of their
/// folder.
fn cycles(modules: &Crate<'_>, path: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let uses = modules.uses();
    for parent in modules.parents() {
        let mut graph: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for named in &uses {
            let Some(from) = named
                .from
                .strip_prefix(parent.as_slice())
                .and_then(<[String]>::first)
            else {
                continue;
            };
            if let Some(to) = modules.child_named(&parent, &named.to)
                && to != *from
            {
                graph.entry(from).or_default().insert(to);
            }
        }
        let folder = [&[path.to_owned(), "src".to_owned()], parent.as_slice()]
            .concat()
            .join("/");
        for module in graph.keys() {
            let reached = reachable(&graph, module);
            if reached.contains(*module) {
                let others = reached
                    .iter()
                    .filter(|other| reachable(&graph, other).contains(*module));
                let others: Vec<_> = others.filter(|other| *other != module).copied().collect();
                findings.push(Finding {
                    key: Key::new("cycles", &folder),
                    line: 0,
                    message: format!("`{module}` is in a cycle with {}", others.join(", ")),
                });
            }
        }
    }
    findings
}

/// Returns the modules that one names, directly or through others.
fn reachable<'a>(graph: &'a BTreeMap<&str, BTreeSet<String>>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = vec![from];
    while let Some(module) = open.pop() {
        for next in graph.get(module).into_iter().flatten() {
            if found.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "[c]\nunits  # the lowest\nkey policy\nlimiter\n";

    fn checked(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let tree = Tree::of(files.iter().map(own).collect());
        let findings = check(&tree, &Table::parse(TABLE)?)?;
        Ok(findings
            .into_iter()
            .map(|finding| format!("{} {}", finding.key, finding.message))
            .collect())
    }

    #[test]
    fn imports_may_point_down_only() {
        let found = checked(&[
            (
                "c/src/lib.rs",
                "mod units; mod policy; mod key; mod limiter; pub use crate::limiter::Limiter;",
            ),
            ("c/src/units.rs", "fn a() { crate::Limiter::new() }"),
            ("c/src/key.rs", "use crate::policy::Policy;"),
            ("c/src/policy.rs", "use crate::units::Amount;"),
            (
                "c/src/limiter.rs",
                "use crate::{key, units}; #[cfg(test)] mod tests { use crate::limiter::x; }",
            ),
        ]);
        let found = found.unwrap_or_default();
        let upward: Vec<_> = found.iter().filter(|line| line.contains(" layers ")).collect();
        assert_eq!(
            upward,
            [
                "c/src/key.rs layers `key` is not above `policy`, and names policy::Policy",
                "c/src/units.rs layers `units` is not above `limiter`, and names limiter::Limiter::new"
            ]
        );
    }

    #[test]
    fn folder_with_section_has_layers() {
        let table = "[c]\na\n[c a]\nlow\nhigh\n";
        let files = [
            ("c/src/lib.rs", "mod a;"),
            ("c/src/a.rs", "mod low; mod high; fn b() { crate::a::high::x() }"),
            ("c/src/a/low.rs", "use crate::a::high::deeper::X;"),
            ("c/src/a/high.rs", "mod deeper; use super::low::Y;"),
        ];
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let check = |files: &[(&str, &str)]| {
            let tree = Tree::of(files.iter().map(own).collect());
            check(&tree, &Table::parse(table).unwrap_or_default())
        };
        let found = check(&files).unwrap_or_default();
        let upward = found
            .iter()
            .filter(|found| found.key.to_string().ends_with("layers"));
        let messages: Vec<_> = upward.map(|found| found.message.as_str()).collect();
        assert_eq!(
            messages,
            ["`low` is not above `high`, and names a::high::deeper::X"]
        );
        let unlisted = [files.as_slice(), &[("c/src/a/new.rs", "fn a() {}")]].concat();
        assert!(check(&unlisted).is_err_and(|error| error.contains("c::a") && error.contains("`new`")));
    }

    #[test]
    fn modules_that_are_not_listed_are_an_error() {
        let found = checked(&[("c/src/lib.rs", "mod new;"), ("c/src/new.rs", "fn a() {}")]);
        assert!(found.is_err_and(|error| error.contains("`new`")));
    }

    #[test]
    fn listed_modules_that_do_not_exist_are_an_error() {
        let found = checked(&[
            ("c/src/lib.rs", "mod units; mod policy; mod limiter;"),
            ("c/src/units.rs", "fn a() {}"),
            ("c/src/policy.rs", "fn a() {}"),
            ("c/src/limiter.rs", "fn a() {}"),
        ]);
        assert!(found.is_err_and(|error| error.contains("`key`") && error.contains("of c ")));
    }

    #[test]
    fn siblings_in_a_cycle_are_found_through_re_exports_too() {
        let found = checked(&[
            ("d/src/lib.rs", "mod p;"),
            (
                "d/src/p.rs",
                "mod a; mod b; mod c; pub(crate) use crate::p::b::Thing;",
            ),
            ("d/src/p/a.rs", "use super::Thing;"),
            ("d/src/p/b.rs", "use crate::p::c::X;"),
            ("d/src/p/c.rs", "use super::a::Y;"),
        ]);
        assert_eq!(
            found.unwrap_or_default(),
            [
                "d/src/p cycles `a` is in a cycle with b, c",
                "d/src/p cycles `b` is in a cycle with a, c",
                "d/src/p cycles `c` is in a cycle with a, b"
            ]
        );
        let acyclic = checked(&[
            ("d/src/lib.rs", "mod a; mod b;"),
            ("d/src/a.rs", "use crate::b::X;"),
            ("d/src/b.rs", "fn a() {}"),
        ]);
        assert_eq!(acyclic.unwrap_or_default(), Vec::<String>::new());
    }
}
