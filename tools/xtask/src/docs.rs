//! The documentation as a book: checks the links and the code of all documents, then builds `docs`
//! with mdBook.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::{self, root};
use crate::packages::on_path;

/// `cargo xtask docs`. Its result is in `target/book`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(arg) = args.first() {
        return Err(format!("docs takes no arguments, got `{arg}`"));
    }
    check_links(root())?;
    check_code(root())?;
    if !on_path("mdbook") {
        return Err("mdbook is missing: `cargo install mdbook --locked`".to_owned());
    }
    let mut mdbook = Command::new("mdbook");
    mdbook.arg("build").arg("docs").current_dir(root());
    commands::succeed(mdbook, "docs")
}

/// Every relative link of a document leads to a file, and every page of `docs` is in the summary.
fn check_links(root: &Path) -> Result<(), String> {
    let mut pages = Vec::new();
    for folder in ["", "docs", "docs/guide", "docs/design"] {
        let entries =
            fs::read_dir(root.join(folder)).map_err(|error| format!("cannot list `{folder}`: {error}"))?;
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        pages.extend(files.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    pages.sort();
    let summary = read(&root.join("docs/SUMMARY.md"))?;
    let mut wrong = Vec::new();
    for page in &pages {
        let folder = page.parent().unwrap_or(root);
        for link in links(&read(page)?) {
            if !folder.join(&link).exists() {
                wrong.push(format!("  {}: no file `{link}`", page.display()));
            }
        }
        let in_book = page
            .strip_prefix(root.join("docs"))
            .ok()
            .filter(|page| !page.ends_with("SUMMARY.md"));
        if let Some(page) = in_book
            && !links(&summary).iter().any(|link| Path::new(link) == page)
        {
            wrong.push(format!("  docs/SUMMARY.md: no line for {}", page.display()));
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("links:\n{}", wrong.join("\n")))
    }
}

/// The Rust code of every page of `docs` is a doctest: a crate includes the page.
fn check_code(root: &Path) -> Result<(), String> {
    let includes = read(&root.join("limiter-tower/src/lib.rs"))?;
    let mut pages = Vec::new();
    for folder in ["docs", "docs/guide", "docs/design"] {
        let entries =
            fs::read_dir(root.join(folder)).map_err(|error| format!("cannot list `{folder}`: {error}"))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                pages.push((name, read(&path)?));
            }
        }
    }
    let missing = uncompiled(&pages, &includes);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "limiter-tower/src/lib.rs includes no doctests of {}",
            missing.join(", ")
        ))
    }
}

/// Returns the pages, by name and text, with Rust code that `includes` does not include.
fn uncompiled<'a>(pages: &'a [(String, String)], includes: &str) -> Vec<&'a str> {
    let has_code = |text: &str| text.lines().any(|line| line.trim_start().starts_with("```rust"));
    let is_included = |name: &str| includes.contains(&format!("include_str!(\"../../{name}\")"));
    let missing = pages
        .iter()
        .filter(|(name, text)| has_code(text) && !is_included(name));
    missing.map(|(name, _)| name.as_str()).collect()
}

/// Returns the files to which a text links, without anchors. Links to sites and within the page
/// have none.
fn links(text: &str) -> Vec<String> {
    let mut in_code = false;
    let prose = text.lines().filter(|line| {
        in_code ^= line.trim_start().starts_with("```");
        !in_code
    });
    let prose = prose.collect::<Vec<_>>().join("\n");
    let targets = prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let files = targets
        .filter(|target| !target.contains("://"))
        .filter_map(|target| target.split('#').next())
        .filter(|target| !target.is_empty());
    files.map(str::to_owned).collect()
}

fn read(path: &PathBuf) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_are_found_without_anchors() {
        let text = "[a](b.md#c) [d](https://e.f/g) [h](#i) ![j](k/l.svg)\n```\n[m](n.md)\n```\n[o](p.md)";
        assert_eq!(links(text), ["b.md", "k/l.svg", "p.md"]);
    }

    #[test]
    fn links_of_the_documents_lead_to_files() {
        assert_eq!(check_links(root()), Ok(()));
    }

    #[test]
    fn pages_with_code_need_doctests() {
        let page = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let pages = [
            page("docs/a.md", "```rust\nf();\n```\n"),
            page("docs/b.md", "- list\n  ```rust,no_run\n  f();\n  ```\n"),
            page("docs/c.md", "```text\nrust\n```\n"),
        ];
        let includes = "#[doc = include_str!(\"../../docs/a.md\")]";
        assert_eq!(uncompiled(&pages, includes), ["docs/b.md"]);
    }

    #[test]
    fn code_of_the_documents_is_compiled() {
        assert_eq!(check_code(root()), Ok(()));
    }
}
