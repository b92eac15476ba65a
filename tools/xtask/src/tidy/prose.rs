//! Documentation and messages: the rate of clauses that stand for a noun, the first words of
//! paragraphs, the headers of files, the width of comments, the length of files.

use std::collections::BTreeMap;

use super::Finding;
use super::baseline::Key;
use super::lexer::{Kind, Token};
use super::tree::{File, Language, Tree};

const WIDTH: usize = 100;
const LENGTH: usize = 400;

/// Pages that a newcomer reads completely, with the limit of their lines.
const OVERVIEWS: [&str; 2] = ["README.md", "ARCHITECTURE.md"];
const OVERVIEW_LENGTH: usize = 150;

/// Lines of code from which the header of a file names its tests.
const HEADER_LENGTH: usize = 80;

/// A string literal with fewer words is a name or a value; with more it is a message.
const MIN_MESSAGE_WORDS: usize = 4;

/// First words of a paragraph without a subject or a verb of its own.
const OPENINGS: [&str; 5] = ["The same", "What", "Who", "Whose", "Whether"];

/// Words before `whose` that are not the noun of the clause.
const NOT_A_NOUN: [&str; 40] = [
    "and", "are", "as", "asks", "at", "be", "but", "by", "does", "down", "for", "from", "if", "in", "into",
    "is", "it", "knows", "like", "not", "of", "on", "only", "or", "over", "says", "shows", "so", "tell",
    "tells", "than", "that", "the", "then", "to", "told", "under", "was", "when", "with",
];

/// Nouns before `who` and `whom`. After any other word the clause stands for a noun.
const PERSONS: [&str; 16] = [
    "administrators",
    "author",
    "caller",
    "callers",
    "client",
    "clients",
    "editors",
    "engineers",
    "operator",
    "operators",
    "owner",
    "owners",
    "people",
    "readers",
    "user",
    "users",
];

/// Clauses with `what`, `who` and the like in place of a noun, and for each crate their rate in
/// 10,000 words.
pub(super) fn headless(tree: &Tree) -> (Vec<Finding>, Vec<String>) {
    let mut findings = Vec::new();
    let mut totals: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| is_prose(file)) {
        let of_crate = file.crate_path().unwrap_or("documents").to_owned();
        let total = totals.entry(of_crate).or_default();
        for (line, text) in documentation(file) {
            total.1 += text.split_whitespace().count();
            for word in headless_clauses(&text) {
                total.0 += 1;
                findings.push(Finding {
                    key: Key::new("headless", &file.path),
                    line,
                    message: format!(
                        "`{word}` stands for a noun: {}",
                        text.trim().chars().take(90).collect::<String>()
                    ),
                });
            }
        }
    }
    let rates = totals
        .into_iter()
        .filter(|(_, (_, words))| *words > 0)
        .map(|(name, (clauses, words))| {
            format!(
                "tidy: headless: {name}: {} of 10,000 words",
                clauses * 10_000 / words
            )
        });
    (findings, rates.collect())
}

fn is_prose(file: &File) -> bool {
    !file.path.contains("/tests/") && !file.path.contains("/src/tidy/") && !is_generated(file)
}

/// Returns the pages that `cargo xtask bench` writes.
fn is_generated(file: &File) -> bool {
    file.path == "BENCHMARKS.md" || file.path.starts_with("benchmarks/")
}

/// Sentences of documentation and of messages, each with the line on which its block starts or, in
/// Markdown, its own.
fn documentation(file: &File) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut in_code = false;
    let mut last = 0;
    let mut push = |line: usize, text: &str| {
        if text.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !text.trim().is_empty() {
            let goes_on = line == last + 1 && !text.trim_start().starts_with(['-', '#', '|']);
            last = line;
            match blocks.last_mut().filter(|_| goes_on) {
                Some((_, block)) => {
                    block.push(' ');
                    block.push_str(text);
                }
                None => blocks.push((line, text.to_owned())),
            }
        }
    };
    match file.language {
        Language::Rust => {
            for token in &file.code {
                if let Kind::Comment(text) = &token.kind {
                    push(token.line, text.trim_start_matches(['/', '!', '*']));
                }
            }
        }
        Language::Lua => {
            for (number, line) in file.text.lines().enumerate() {
                if let Some(text) = line.trim_start().strip_prefix("--") {
                    push(number + 1, text);
                }
            }
        }
        Language::Toml => {
            for (number, line) in file.text.lines().enumerate() {
                if let Some(text) = line.trim_start().strip_prefix('#') {
                    push(number + 1, text.trim_start_matches('#'));
                }
            }
        }
        Language::Markdown => {
            for (number, line) in file.text.lines().enumerate() {
                push(number + 1, line);
            }
        }
        Language::Other => {}
    }
    blocks.extend(messages(file));
    let sentences = blocks.iter().flat_map(|(line, block)| {
        let block = without_code_spans(block);
        let parts = block.split_inclusive(['.', '?', ';']);
        parts
            .map(|sentence| (*line, sentence.to_owned()))
            .collect::<Vec<_>>()
    });
    sentences.collect()
}

/// String literals of Rust code that are texts, such as errors and log messages.
fn messages(file: &File) -> Vec<(usize, String)> {
    let texts = file.code.iter().filter_map(|token| match &token.kind {
        Kind::Text(text) if text.split_whitespace().nth(MIN_MESSAGE_WORDS - 1).is_some() => {
            Some((token.line, text.clone()))
        }
        _ => None,
    });
    texts.collect()
}

/// Returns the text with the word `code` in place of each code span. A span contains names, which
/// other checks read in the source; a table of renamed items also contains the old ones.
pub(super) fn without_code_spans(text: &str) -> String {
    let mut parts = text.split('`').peekable();
    let mut prose = String::new();
    while let Some(part) = parts.next() {
        prose.push_str(part);
        let Some(span) = parts.next() else { break };
        // The last mark of an odd number opens no span.
        let is_closed = parts.peek().is_some();
        prose.push_str(if is_closed { "code" } else { span });
    }
    prose
}

/// Returns the words that introduce such clauses in a sentence. Questions have none.
fn headless_clauses(sentence: &str) -> Vec<&'static str> {
    if sentence.trim_end().ends_with('?') {
        return Vec::new();
    }
    let mut found = Vec::new();
    // A mark before a word separates it from a noun before it.
    let mut before = String::new();
    for word in sentence.split_whitespace() {
        let bare = word
            .trim_matches(|letter: char| !letter.is_alphanumeric())
            .to_lowercase();
        let has_noun = !before.is_empty() && !NOT_A_NOUN.contains(&before.as_str());
        let has_person = PERSONS.contains(&before.as_str());
        let clause = match bare.as_str() {
            "what" => Some("what"),
            "whatever" => Some("whatever"),
            "whoever" => Some("whoever"),
            "who" if !has_person => Some("who"),
            "whose" if !has_noun => Some("whose"),
            "whom" if !has_person => Some("whom"),
            _ => None,
        };
        found.extend(clause);
        before = if word.ends_with([',', ':', '(', '|']) {
            String::new()
        } else {
            bare
        };
    }
    found
}

/// Paragraphs of documentation that start with a clause in place of a sentence.
pub(super) fn openings(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.contains("/src/tidy/")) {
        // The line of the last comment with text.
        let mut last = None;
        for token in &file.tokens {
            let Kind::Comment(text) = &token.kind else {
                continue;
            };
            let Some(text) = ["///", "//!"].iter().find_map(|mark| text.strip_prefix(mark)) else {
                continue;
            };
            let text = text.trim();
            let starts = |opening: &&&str| {
                let rest = text.strip_prefix(**opening);
                rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            };
            let is_first = last.is_none_or(|last| last + 1 != token.line);
            if let Some(opening) = OPENINGS.iter().find(starts).filter(|_| is_first) {
                findings.push(Finding {
                    key: Key::new("openings", &file.path),
                    line: token.line,
                    message: format!(
                        "a paragraph starts with `{opening}`: write `Returns whether` or `True if`"
                    ),
                });
            }
            if !text.is_empty() {
                last = Some(token.line);
            }
        }
    }
    findings
}

/// Headers that do not name the tests of a module. Files of less code need no header of several
/// sentences.
pub(super) fn headers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let of_libraries = |file: &&File| {
        file.crate_path()
            .is_some_and(|path| path.starts_with("limiter-") && !path.contains('/'))
    };
    for file in tree.files.iter().filter(of_libraries) {
        let is_comment = |token: &&Token| matches!(token.kind, Kind::Comment(_));
        let mut lines: Vec<_> = file.code.iter().filter(|token| !is_comment(token)).collect();
        lines.dedup_by_key(|token| token.line);
        let mut header = file.tokens.iter().take_while(is_comment);
        let names_tests = header.any(|token| match &token.kind {
            Kind::Comment(text) => text.to_lowercase().contains("test"),
            _ => false,
        });
        if lines.len() >= HEADER_LENGTH && !names_tests {
            findings.push(Finding {
                key: Key::new("headers", &file.path),
                line: 1,
                message: format!("a file of {} lines names no tests in its header", lines.len()),
            });
        }
    }
    findings
}

/// Comments and Markdown text wider than the limit. Tables, links and code cannot be wrapped.
pub(super) fn width(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !is_generated(file)) {
        let mut in_code = false;
        for (number, line) in file.text.lines().enumerate() {
            let trimmed = line.trim_start();
            let text = match file.language {
                Language::Rust => trimmed
                    .strip_prefix("//")
                    .map(|text| text.trim_start_matches(['/', '!'])),
                Language::Lua => trimmed.strip_prefix("--"),
                Language::Toml => trimmed.strip_prefix('#'),
                Language::Markdown => Some(trimmed),
                Language::Other => ["//", "#", "/*", "*", "--"]
                    .iter()
                    .find_map(|mark| trimmed.strip_prefix(mark)),
            };
            let Some(text) = text.map(str::trim_start) else {
                continue;
            };
            in_code ^= text.starts_with("```");
            let can_be_wrapped =
                !in_code && !text.starts_with('|') && !text.contains("](http") && !text.starts_with("http");
            if can_be_wrapped && line.chars().count() > WIDTH {
                findings.push(Finding {
                    key: Key::new("width", &file.path),
                    line: number + 1,
                    message: format!("{} columns", line.chars().count()),
                });
            }
        }
    }
    findings
}

/// Returns each line of code beyond the limit of a file, without blank lines, and each line beyond
/// the limit of an overview. Tests are not counted: each is read alone, and a file of tests is a
/// list.
pub(super) fn length(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| OVERVIEWS.contains(&&*file.path)) {
        let lines = file.text.lines().count();
        for line in OVERVIEW_LENGTH..lines {
            findings.push(Finding {
                key: Key::new("length", &file.path),
                line: line + 1,
                message: format!("the page has {lines} lines; the limit is {OVERVIEW_LENGTH}"),
            });
        }
    }
    for file in tree.files.iter().filter(|file| file.crate_path().is_some()) {
        let mut lines: Vec<_> = file.code.iter().map(|token| token.line).collect();
        lines.dedup();
        for line in lines.iter().skip(LENGTH) {
            findings.push(Finding {
                key: Key::new("length", &file.path),
                line: *line,
                message: format!(
                    "the file has {} lines of code and comments; the limit is {LENGTH}",
                    lines.len()
                ),
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(path: &str, text: &str) -> Tree {
        Tree::of(vec![(path.to_owned(), text.to_owned())])
    }

    #[test]
    fn clauses_without_a_noun_are_found() {
        assert_eq!(headless_clauses("What was used is given back."), ["what"]);
        assert_eq!(
            headless_clauses("A refund wakes who waits, and whoever comes."),
            ["who", "whoever"]
        );
        assert_eq!(
            headless_clauses("Callers who wait, and a client whose key is limited."),
            Vec::<&str>::new()
        );
        assert_eq!(
            headless_clauses("What happens when Redis is down?"),
            Vec::<&str>::new()
        );
    }

    #[test]
    fn words_in_code_spans_are_names_and_not_clauses() {
        let text = "| `Missing.what` | a clause with `who` |\n\nWhat was `used`, and `what` is not.\n";
        let (found, _) = headless(&tree("docs/a.md", text));
        let lines: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [3], "{found:?}");
    }

    #[test]
    fn rate_counts_documentation_without_code_and_tests() {
        let text = "//! What is it. Ten words of text are in this file.\nfn a() {}\n/// ```\n/// what();\n/// ```\n#[cfg(test)]\nmod t {\n    // what\n}\n";
        let tree = tree("c/src/lib.rs", text);
        let (found, rates) = headless(&tree);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(rates, ["tidy: headless: c: 909 of 10,000 words"]);
    }

    #[test]
    fn clauses_in_messages_are_found_and_names_are_not() {
        let text = "fn a() { error(\"what\"); error(\"shown is what failed\"); error(\"a node whose slot moved\") }\n\
                    #[cfg(test)]\nmod t { fn b() { error(\"shown is what failed\") } }\n";
        let (found, _) = headless(&tree("c/src/lib.rs", text));
        let lines: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1], "{found:?}");
    }

    #[test]
    fn clauses_in_place_of_sentences_are_found_at_the_start_of_paragraphs() {
        let text = "//! Whether it is.\n\n/// Returns\n/// Whether so.\n///\n/// What it is.\nfn a() {}\n/// Whom.\n// Who.\nfn b() {}\n/// The same.\n";
        let found = openings(&tree("c/tests/lib.rs", text));
        let lines: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 6, 11], "{found:?}");
    }

    #[test]
    fn clauses_in_comments_of_toml_are_found() {
        let (found, _) = headless(&tree("c/Cargo.toml", "what = 1\n# What is needed.\n"));
        let lines: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2], "{found:?}");
    }

    #[test]
    fn wide_comments_are_found_and_tables_are_not() {
        let wide = "word ".repeat(22);
        let text = format!("// {wide}\n// | {wide}|\nlet a = \"{wide}\";\n/// short\n");
        let found = width(&tree("c/src/lib.rs", &text));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(width(&tree("docs/a.md", &wide)).len(), 1);
        assert_eq!(width(&tree("c/a.sh", &format!("# {wide}\n{wide}"))).len(), 1);
    }

    #[test]
    fn long_file_without_tests_in_its_header_is_found() {
        let long = "a();\n".repeat(HEADER_LENGTH);
        let found = |path: &str, text: &str| headers(&tree(path, text)).len();
        assert_eq!(
            found(
                "limiter-c/src/a.rs",
                &format!("//! A module.\n{long}// Tests: below.\n")
            ),
            1
        );
        assert_eq!(
            found(
                "limiter-c/src/a.rs",
                &format!("//! A module. Tests: below.\n{long}")
            ),
            0
        );
        assert_eq!(found("limiter-c/src/a.rs", "//! A module.\na();\n"), 0);
        assert_eq!(found("tools/limiter-c/src/a.rs", &long), 0);
    }

    #[test]
    fn lines_beyond_the_limit_are_counted_without_tests() {
        let code = "a();\n\n".repeat(LENGTH + 3);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(length(&tree("c/src/lib.rs", &(code + &tests))).len(), 3);
        assert!(length(&tree("c/src/lib.rs", &tests)).is_empty());
        let page = "text\n".repeat(OVERVIEW_LENGTH + 2);
        assert_eq!(length(&tree("README.md", &page)).len(), 2);
        assert!(length(&tree("docs/a.md", &page)).is_empty());
    }
}
