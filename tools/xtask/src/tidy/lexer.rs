//! Rust source as tokens, with comments and string literals, and without code that only tests
//! compile.

/// A token and the line on which it starts, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ident(String),
    /// The content of a string literal, unescaped.
    Text(String),
    /// The text of a comment with its marks, one per line.
    Comment(String),
    /// `::` is one token.
    PathSep,
    Punct(char),
    /// Lifetimes, numbers and characters, which no check reads.
    Other,
}

impl Token {
    pub(super) fn ident(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ident(name) => Some(name),
            _ => None,
        }
    }

    pub(super) fn is(&self, punct: char) -> bool {
        self.kind == Kind::Punct(punct)
    }
}

/// Splits source text into tokens.
pub(super) fn tokens(source: &str) -> Vec<Token> {
    let bytes = source.as_bytes();
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        let rest = bytes.get(at..).unwrap_or_default();
        let kind = match byte {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            _ if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'/' if rest.starts_with(b"//") => {
                at = until(bytes, at, |rest| rest.starts_with(b"\n"));
                Kind::Comment(slice(source, start, at))
            }
            b'/' if rest.starts_with(b"/*") => {
                at = until(bytes, at + 2, |rest| rest.starts_with(b"*/")) + 2;
                Kind::Comment(slice(source, start, at))
            }
            b'"' => {
                at = end_of_string(bytes, at + 1);
                Kind::Text(slice(source, start + 1, at.saturating_sub(1)))
            }
            b'r' | b'b' | b'c' if raw_hashes(rest).is_some() => {
                let (prefix, hashes) = raw_hashes(rest).unwrap_or_default();
                let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
                let open = at + prefix + hashes + 1;
                let end = until(bytes, open, |rest| rest.starts_with(&close));
                at = end + close.len();
                Kind::Text(slice(source, open, end))
            }
            b'b' if rest.starts_with(b"b\"") => {
                at = end_of_string(bytes, at + 2);
                Kind::Text(slice(source, start + 2, at.saturating_sub(1)))
            }
            b'\'' => {
                at = end_of_quote(bytes, at);
                Kind::Other
            }
            _ if byte.is_ascii_alphabetic() || byte == b'_' => {
                at = until(bytes, at, |rest| rest.first().is_none_or(|byte| !is_word(*byte)));
                Kind::Ident(slice(source, start, at))
            }
            _ if byte.is_ascii_digit() => {
                at = until(bytes, at, |rest| rest.first().is_none_or(|byte| !is_word(*byte)));
                Kind::Other
            }
            b':' if rest.starts_with(b"::") => {
                at += 2;
                Kind::PathSep
            }
            _ => {
                let letter = source
                    .get(at..)
                    .and_then(|rest| rest.chars().next())
                    .unwrap_or(' ');
                at += letter.len_utf8();
                Kind::Punct(letter)
            }
        };
        found.push(Token { kind, line });
        line += bytes
            .get(start..at)
            .unwrap_or_default()
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
    }
    found
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn slice(source: &str, start: usize, end: usize) -> String {
    source
        .get(start..end.min(source.len()))
        .unwrap_or_default()
        .to_owned()
}

/// Returns the first place from `at` on where the rest is as wanted, or the end.
fn until(bytes: &[u8], at: usize, is_end: impl Fn(&[u8]) -> bool) -> usize {
    (at..bytes.len())
        .find(|at| is_end(bytes.get(*at..).unwrap_or_default()))
        .unwrap_or(bytes.len())
}

/// Returns the place after the closing quote of a string whose content starts at `at`.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the length of the prefix of a raw string (`r`, `br`), and its number of hashes.
fn raw_hashes(rest: &[u8]) -> Option<(usize, usize)> {
    let prefix = usize::from(!rest.starts_with(b"r")) + 1;
    if rest.get(prefix - 1) != Some(&b'r') {
        return None;
    }
    let hashes = rest
        .get(prefix..)?
        .iter()
        .take_while(|byte| **byte == b'#')
        .count();
    (rest.get(prefix + hashes) == Some(&b'"')).then_some((prefix, hashes))
}

/// Returns the place after a character or a lifetime that starts at `at`.
fn end_of_quote(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at + 1) == Some(&b'\\') {
        return until(bytes, at + 3, |rest| rest.starts_with(b"'")) + 1;
    }
    let word = until(bytes, at + 1, |rest| {
        rest.first().is_none_or(|byte| !is_word(*byte) && byte.is_ascii())
    });
    if bytes.get(word) == Some(&b'\'') {
        return word + 1;
    }
    // A character that is no part of a word, such as '('.
    if word == at + 1 { at + 3 } else { word }
}

/// Removes each item under `#[cfg(test)]` and each function under `#[test]`. The attribute is
/// removed with it.
pub(super) fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if is_test_attribute(tokens, at) {
            at = end_of_item(tokens, at);
        } else {
            kept.push(token.clone());
            at += 1;
        }
    }
    kept
}

/// Returns whether `#[cfg(test)]`, `#[cfg(all(test, …))]` or `#[test]` starts at a token.
pub(super) fn is_test_attribute(tokens: &[Token], at: usize) -> bool {
    let Some((first, inside)) = attribute(tokens, at) else {
        return false;
    };
    match first {
        "test" => true,
        "cfg" => {
            let names: Vec<_> = inside.iter().filter_map(Token::ident).collect();
            names.contains(&"test") && !names.contains(&"not") && !names.contains(&"any")
        }
        _ => false,
    }
}

/// Returns the name of the attribute that starts here, and its tokens.
pub(super) fn attribute(tokens: &[Token], at: usize) -> Option<(&str, &[Token])> {
    if !tokens.get(at)?.is('#') || !tokens.get(at + 1)?.is('[') {
        return None;
    }
    let end = matching(tokens, at + 1);
    let inside = tokens.get(at + 2..end)?;
    Some((inside.first()?.ident()?, inside))
}

/// Returns the place of the bracket that closes the one here.
pub(super) fn matching(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Punct('(' | '[' | '{') => depth += 1,
            Kind::Punct(')' | ']' | '}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// Returns the place after the item whose attributes start here: after its block or its semicolon.
fn end_of_item(tokens: &[Token], mut at: usize) -> usize {
    while attribute(tokens, at).is_some() {
        at = matching(tokens, at + 1) + 1;
    }
    while let Some(token) = tokens.get(at) {
        match token.kind {
            Kind::Punct(';') => return at + 1,
            Kind::Punct('{') => {
                let end = matching(tokens, at) + 1;
                // `use a::{b};` goes on.
                return if tokens.get(end).is_some_and(|token| token.is(';')) {
                    end + 1
                } else {
                    end
                };
            }
            Kind::Punct('(' | '[') => at = matching(tokens, at) + 1,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idents(source: &str) -> Vec<String> {
        let tokens = without_tests(&tokens(source));
        tokens
            .iter()
            .filter_map(|token| token.ident().map(str::to_owned))
            .collect()
    }

    #[test]
    fn strings_and_comments_hold_no_identifiers() {
        let source = "let a = \"b \\\" c\"; // d\n/* e */ r#\"f \" g\"# 'h' '\\'' 'i: i2 '(' br\"j\" k";
        assert_eq!(idents(source), ["let", "a", "i2", "k"]);
    }

    #[test]
    fn lines_are_those_on_which_tokens_start() {
        let found = tokens("a\n\"b\nc\"\nd");
        let lines: Vec<_> = found.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 2, 4]);
    }

    #[test]
    fn items_under_cfg_test_are_removed() {
        let source = "a #[cfg(test)] mod t { b { } c } d #[cfg(all(test, x))] use e::{f}; g #[test] #[h] fn i() { j } k";
        assert_eq!(idents(source), ["a", "d", "g", "k"]);
        let kept = idents("#[cfg(not(test))] mod a {}");
        assert_eq!(kept, ["cfg", "not", "test", "mod", "a"]);
    }
}
