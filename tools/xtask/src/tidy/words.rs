//! Words that hide a standard term, in identifiers and in prose, with the term to use.

use super::Finding;
use super::baseline::Key;
use super::lexer::Kind;
use super::prose::without_code_spans;
use super::tree::{File, Language, Tree};

/// The list of `words.txt`.
#[derive(Debug, Default)]
pub(super) struct List(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    /// The words of a phrase, in lower case.
    words: Vec<String>,
    instead: String,
    scope: Scope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Prose,
    Identifiers,
}

impl List {
    /// Reads lines of `<phrase> -> <replacement>`, after `ident:` or `prose:` only in identifiers
    /// or in prose.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let (phrase, instead) = line
                .split_once(" -> ")
                .ok_or_else(|| format!("words.txt: no ` -> ` in `{line}`"))?;
            let (scope, phrase) = match phrase.split_once(':') {
                Some(("ident", rest)) => (Scope::Identifiers, rest),
                Some(("prose", rest)) => (Scope::Prose, rest),
                _ => (Scope::All, phrase),
            };
            entries.push(Entry {
                words: phrase.split_whitespace().map(str::to_lowercase).collect(),
                instead: instead.to_owned(),
                scope,
            });
        }
        Ok(Self(entries))
    }

    fn find(&self, words: &[String], scope: Scope) -> Vec<&Entry> {
        let applies = |entry: &&Entry| entry.scope == Scope::All || entry.scope == scope;
        let mut found = Vec::new();
        for entry in self.0.iter().filter(applies) {
            let count = words
                .windows(entry.words.len())
                .filter(|window| *window == entry.words)
                .count();
            found.extend(std::iter::repeat_n(entry, count));
        }
        found
    }
}

pub(super) fn check(tree: &Tree, list: &List) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| is_checked(file)) {
        let mut report = |words: &[String], scope, line| {
            for entry in list.find(words, scope) {
                findings.push(Finding {
                    key: Key::new("words", &file.path),
                    line,
                    message: format!("`{}`: write {}", entry.words.join(" "), entry.instead),
                });
            }
        };
        match file.language {
            Language::Rust => {
                for token in &file.tokens {
                    match &token.kind {
                        Kind::Ident(name) => report(&identifier_words(name), Scope::Identifiers, token.line),
                        Kind::Text(text) | Kind::Comment(text) => {
                            report(&prose_words(text), Scope::Prose, token.line)
                        }
                        _ => {}
                    }
                }
            }
            Language::Lua => {
                for (number, line) in file.text.lines().enumerate() {
                    let (code, prose) = lua_code_and_prose(line);
                    for name in code.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
                        report(&identifier_words(name), Scope::Identifiers, number + 1);
                    }
                    report(&prose_words(&prose), Scope::Prose, number + 1);
                }
            }
            Language::Toml | Language::Other => {
                for (number, line) in file.text.lines().enumerate() {
                    report(&prose_words(line), Scope::Prose, number + 1);
                }
            }
            Language::Markdown => {
                for (number, line) in file.text.lines().enumerate() {
                    report(&prose_words(&without_code_spans(line)), Scope::Prose, number + 1);
                }
            }
        }
    }
    findings
}

/// The checks of words and clauses name them.
fn is_checked(file: &File) -> bool {
    !["/src/tidy/words.rs", "/src/tidy/prose.rs"]
        .iter()
        .any(|path| file.path.ends_with(path))
}

/// `told_by` and `ToldBy` as their words.
fn identifier_words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() && was_lower {
            words.push(String::new());
        }
        was_lower = letter.is_lowercase() || letter.is_ascii_digit();
        if let Some(word) = words.last_mut().filter(|_| letter != '_') {
            word.extend(letter.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns a line of Lua as its code, and its strings and comment. A string or comment ends with
/// its line: the scripts have no long brackets.
fn lua_code_and_prose(line: &str) -> (String, String) {
    let (mut code, mut prose) = (String::new(), String::new());
    let mut quote = None;
    let mut letters = line.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match quote {
            None if letter == '-' && letters.peek().is_some_and(|(_, next)| *next == '-') => {
                prose.push_str(line.get(at..).unwrap_or_default());
                break;
            }
            None if matches!(letter, '\'' | '"') => {
                quote = Some(letter);
                code.push(' ');
            }
            None => code.push(letter),
            Some(_) if letter == '\\' => {
                letters.next();
                prose.push(' ');
            }
            Some(end) if letter == end => {
                quote = None;
                prose.push(' ');
            }
            Some(_) => prose.push(letter),
        }
    }
    (code, prose)
}

fn prose_words(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '\'');
    words
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_split_into_words() {
        assert_eq!(identifier_words("ToldBy_peer2X"), ["told", "by", "peer2", "x"]);
    }

    #[test]
    fn words_and_phrases_are_found_where_they_are_banned() {
        let list =
            List::parse("# comment\ntold -> sent\nprose:so many -> a number\nident:desk -> schedule\n");
        let own = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let tree = Tree::of(vec![
            own(
                "c/src/lib.rs",
                "// Told so\n/// so many\nfn is_told(desk: u8) { \"the desk\"; so_many() }",
            ),
            own("docs/a.md", "So many are TOLD; untold many."),
            own("c/Cargo.toml", "a = 1\n# so many\n"),
            own("xtask/tidy/layers.txt", "# Told\ndesk\n"),
            own("c/src/a.html", "<p>told</p>\n"),
            own("c/tests/other.txt", "told\n"),
        ]);
        let found = check(&tree, &list.unwrap_or_default());
        let found: Vec<_> = found
            .into_iter()
            .map(|finding| format!("{}:{} {}", finding.key, finding.line, finding.message))
            .collect();
        assert_eq!(
            found,
            [
                "c/Cargo.toml words:2 `so many`: write a number",
                "c/src/a.html words:1 `told`: write sent",
                "c/src/lib.rs words:1 `told`: write sent",
                "c/src/lib.rs words:2 `so many`: write a number",
                "c/src/lib.rs words:3 `told`: write sent",
                "c/src/lib.rs words:3 `desk`: write schedule",
                "docs/a.md words:1 `told`: write sent",
                "docs/a.md words:1 `so many`: write a number",
                "xtask/tidy/layers.txt words:1 `told`: write sent"
            ]
        );
    }

    #[test]
    fn identifiers_of_lua_are_checked_without_strings_and_comments() {
        let list = List::parse("ident:desk -> schedule\ntold -> sent\n").unwrap_or_default();
        let script = "local DESK_BYTES = '<I8 desk' -- a desk, told\n\
                      redis.error_reply('it\\'s told') desk.told = 1\n";
        let tree = Tree::of(vec![("c/src/a.lua".to_owned(), script.to_owned())]);
        let found: Vec<_> = check(&tree, &list)
            .into_iter()
            .map(|finding| format!("{} {}", finding.line, finding.message))
            .collect();
        assert_eq!(
            found,
            [
                "1 `desk`: write schedule",
                "1 `told`: write sent",
                "2 `desk`: write schedule",
                "2 `told`: write sent",
                "2 `told`: write sent"
            ]
        );
    }

    #[test]
    fn code_spans_of_documents_are_exempt() {
        let list = List::parse("told -> sent\n").unwrap_or_default();
        let found_lines = |path: &str, text: &str| {
            let tree = Tree::of(vec![(path.to_owned(), text.to_owned())]);
            let found = check(&tree, &list);
            found.into_iter().map(|finding| finding.line).collect::<Vec<_>>()
        };
        assert_eq!(
            found_lines("docs/a.md", "| `told_by` | `from` |\ntold `so`\n"),
            [2]
        );
        assert_eq!(found_lines("docs/a.md", "an open ` mark told\n"), [1]);
        assert_eq!(found_lines("c/src/lib.rs", "/// `told_by`\nfn a() {}\n"), [1]);
    }

    #[test]
    fn lines_without_a_replacement_are_an_error() {
        assert!(List::parse("told\n").is_err());
    }
}
