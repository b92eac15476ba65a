//! The files that the checks read.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::lexer::{self, Token};

/// Folders without own sources. Folders that start with a dot contain configuration.
const SKIPPED: [&str; 3] = ["target", "corpus", "uplot"];

/// Extensions of files that all checks read.
const SOURCES: [&str; 5] = ["lua", "md", "rs", "toml", "txt"];

/// Extensions of files of which only the words and the width of comments are checked.
const OTHER: [&str; 11] = [
    "acl", "c", "cfg", "conf", "css", "html", "js", "py", "sh", "yaml", "yml",
];

/// All files of the repository that are checked.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) files: Vec<File>,
}

/// A file, by its path from the repository's root, with `/` between folders.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
    pub(super) language: Language,
    /// All tokens of a Rust file.
    pub(super) tokens: Vec<Token>,
    /// The tokens without items that only tests compile; none of a file that only tests compile.
    pub(super) code: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    Lua,
    Markdown,
    /// Also the table of layers, which has the comments of TOML.
    Toml,
    /// Pages, scripts and configurations in other languages.
    Other,
}

impl Tree {
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let mut files = Vec::new();
        read_folder(root, "", &mut files)
            .map_err(|error| format!("cannot read {}: {error}", root.display()))?;
        Ok(Self::of(files))
    }

    /// Of paths and texts.
    pub(super) fn of(files: Vec<(String, String)>) -> Self {
        let mut files: Vec<File> = files
            .into_iter()
            .filter_map(|(path, text)| File::new(path, text))
            .collect();
        let tests = files_under_cfg_test(&files);
        for file in &mut files {
            let only_tests = file.path.contains("/tests/") || file.path.ends_with("/tests.rs");
            if only_tests || tests.iter().any(|module| file.is_in(module)) {
                file.code.clear();
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files }
    }

    /// Returns the crates, by the path of the folder that holds `src`.
    pub(super) fn crates(&self) -> BTreeSet<&str> {
        let crates = self.files.iter().filter_map(|file| {
            let is_root = file.path.ends_with("/src/lib.rs") || file.path.ends_with("/src/main.rs");
            is_root.then(|| file.crate_path())?
        });
        crates.collect()
    }

    /// Returns the Rust files below a crate's `src`.
    pub(super) fn sources<'a>(&'a self, of: &'a str) -> impl Iterator<Item = &'a File> {
        self.files
            .iter()
            .filter(move |file| file.language == Language::Rust && file.crate_path() == Some(of))
    }
}

impl File {
    fn new(path: String, text: String) -> Option<Self> {
        let language = match path.rsplit_once('.')?.1 {
            "rs" => Language::Rust,
            "lua" => Language::Lua,
            "md" => Language::Markdown,
            "toml" => Language::Toml,
            "txt" if path.ends_with("/layers.txt") => Language::Toml,
            extension if OTHER.contains(&extension) => Language::Other,
            _ => return None,
        };
        let tokens = if language == Language::Rust {
            lexer::tokens(&text)
        } else {
            Vec::new()
        };
        let code = lexer::without_tests(&tokens);
        Some(Self {
            path,
            text,
            language,
            tokens,
            code,
        })
    }

    /// Returns the folder that holds `src`, if the file is below one.
    pub(super) fn crate_path(&self) -> Option<&str> {
        self.path.split_once("/src/").map(|(path, _)| path)
    }

    /// Returns the path of the file's module from its crate's root: `[a, b]` of `src/a/b.rs`.
    pub(super) fn module(&self) -> Vec<&str> {
        let path = self.path.split_once("/src/").map_or("", |(_, path)| path);
        let path = path.strip_suffix(".rs").unwrap_or(path);
        let path = path.strip_suffix("/mod").unwrap_or(path);
        if matches!(path, "lib" | "main") {
            Vec::new()
        } else {
            path.split('/').collect()
        }
    }

    /// Returns whether this is the file of a module, given by its path without `.rs`, or of one
    /// below it.
    fn is_in(&self, module: &str) -> bool {
        let path = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        path == module
            || path
                .strip_prefix(module)
                .is_some_and(|rest| rest.starts_with('/'))
    }
}

fn read_folder(root: &Path, folder: &str, files: &mut Vec<(String, String)>) -> std::io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() {
            name.clone()
        } else {
            format!("{folder}/{name}")
        };
        // Not through links, which lead to files that are read already.
        if entry.file_type()?.is_dir() {
            if !SKIPPED.contains(&name.as_str()) && !name.starts_with('.') {
                read_folder(root, &path, files)?;
            }
        } else if entry.file_type()?.is_file()
            && name
                .rsplit_once('.')
                .is_some_and(|(_, end)| SOURCES.contains(&end) || OTHER.contains(&end))
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            files.push((path, text));
        }
    }
    Ok(())
}

/// Returns the modules, as paths without `.rs`, that are declared under `#[cfg(test)]`.
fn files_under_cfg_test(files: &[File]) -> Vec<String> {
    let mut modules = Vec::new();
    for file in files {
        let folder = match file.path.strip_suffix(".rs") {
            Some(path) if path.ends_with("/lib") || path.ends_with("/main") || path.ends_with("/mod") => {
                path.rsplit_once('/').map_or("", |(folder, _)| folder)
            }
            Some(path) => path,
            None => continue,
        };
        for at in 0..file.tokens.len() {
            if !lexer::is_test_attribute(&file.tokens, at) {
                continue;
            }
            let rest = file
                .tokens
                .get(lexer::matching(&file.tokens, at + 1) + 1..)
                .unwrap_or_default();
            let mut rest = rest.iter().filter(|token| token.ident() != Some("pub"));
            if rest.next().and_then(Token::ident) == Some("mod")
                && let Some(name) = rest.next().and_then(Token::ident)
            {
                modules.push(format!("{folder}/{name}"));
            }
        }
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        Tree::of(
            files
                .iter()
                .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn modules_are_named_by_their_files() {
        let tree = tree(&[
            ("tools/c/src/lib.rs", ""),
            ("tools/c/src/a/b.rs", ""),
            ("tools/c/src/a.rs", ""),
        ]);
        let modules: Vec<_> = tree.sources("tools/c").map(File::module).collect();
        assert_eq!(modules, [vec!["a"], vec!["a", "b"], vec![]]);
        assert_eq!(tree.crates().into_iter().collect::<Vec<_>>(), ["tools/c"]);
    }

    #[test]
    fn files_that_only_tests_compile_have_no_code() {
        let tree = tree(&[
            ("c/src/lib.rs", "#[cfg(test)] mod checks; mod other;"),
            ("c/src/checks.rs", "struct A;"),
            ("c/src/checks/inner.rs", "struct B;"),
            ("c/src/other.rs", "struct C;"),
            ("c/tests/it.rs", "struct D;"),
        ]);
        let with_code: Vec<_> = tree
            .files
            .iter()
            .filter(|file| !file.code.is_empty())
            .map(|file| &*file.path)
            .collect();
        assert_eq!(with_code, ["c/src/lib.rs", "c/src/other.rs"]);
    }
}
