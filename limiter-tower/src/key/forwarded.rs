//! Parses the lists in which proxies name the client: `X-Forwarded-For`, and `Forwarded` of RFC
//! 7239. Pure.
//!
//! Each proxy appends the address of its peer, and the elements that the client wrote come before.
//! A list is therefore parsed from its end, and only as far as the trusted proxies reach. Text
//! further left, such as a quote that is never closed, does not change the result. An element
//! without a usable address still counts as an element, because one proxy wrote it.
//!
//! Invariant: the time is linear in the length of the lists
//! (`forwarded_lists_are_parsed_in_linear_time` in `tests/contract/hostile.rs`). Further tests:
//! `client_ip/spoofing_tests.rs`, and the fuzz target `forwarded`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The syntax of a header with addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// Addresses between commas.
    List,
    /// Elements of `name=value` pairs; `for` holds the address.
    Forwarded,
}

/// Returns the addresses in the lines of a header, from last to first, so the nearest proxy first;
/// `None` for an element without a usable address. Several lines are parsed as one, joined by
/// commas (RFC 9110, 5.3).
pub(crate) fn nearest_first<'a>(
    syntax: Syntax,
    lines: impl DoubleEndedIterator<Item = &'a [u8]>,
) -> impl Iterator<Item = Option<IpAddr>> {
    lines
        .rev()
        .flat_map(move |line| Elements {
            syntax,
            rest: Some(line),
        })
        .map(move |element| match syntax {
            Syntax::List => address(trimmed(element)),
            Syntax::Forwarded => forwarded_for(element),
        })
}

/// The elements of one line, from last to first.
struct Elements<'a> {
    syntax: Syntax,
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let comma = match self.syntax {
            Syntax::List => rest.iter().rposition(|byte| *byte == b','),
            Syntax::Forwarded => last_comma(rest),
        };
        let (before, element) = match comma.and_then(|at| rest.split_at_checked(at)) {
            Some((before, [_, element @ ..])) => (Some(before), element),
            _ => (None, rest),
        };
        self.rest = before;
        Some(element)
    }
}

/// Returns the position of the last comma outside a quoted string. If the end of the list is well
/// formed, this is the start of its last element, independent of the text before it.
fn last_comma(list: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for (at, byte) in list.iter().enumerate().rev() {
        match byte {
            b'"' if quoted => quoted = list.get(..at).is_some_and(ends_in_escape),
            b'"' => quoted = true,
            b',' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Returns whether the next character is escaped, by a backslash that is not escaped itself.
fn ends_in_escape(text: &[u8]) -> bool {
    text.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Returns the address of an element's `for`, if the element is well formed and has exactly one
/// `for`.
///
/// Blanks around `;`, and unquoted addresses with colons and brackets, are accepted, because many
/// proxies write them.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = trimmed(element);
    while !rest.is_empty() {
        let (pair, after) = match rest.strip_prefix(b";") {
            Some(after) => (None, after),
            None => {
                let (name, value, after) = pair(rest)?;
                let after = match trimmed(after) {
                    [] => [].as_slice(),
                    [b';', after @ ..] => after,
                    _ => return None,
                };
                (Some((name, value)), after)
            }
        };
        if let Some((name, value)) = pair {
            if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
                return None;
            }
        }
        rest = trimmed(after);
    }
    address(found?)
}

/// Returns a name, its value without the quotes, and the rest of the text.
fn pair(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let equals = text.iter().position(|byte| !is_token(*byte))?;
    let (name, value) = text.split_at_checked(equals)?;
    let value = value.strip_prefix(b"=")?;
    let (value, after) = match value.strip_prefix(b"\"") {
        Some(quoted) => {
            let end = end_of_quoted(quoted)?;
            (quoted.get(..end)?, quoted.get(end + 1..)?)
        }
        None => {
            let is_bare = |byte: u8| is_token(byte) || b":[]".contains(&byte);
            let end = value
                .iter()
                .position(|byte| !is_bare(*byte))
                .unwrap_or(value.len());
            value.split_at_checked(end)?
        }
    };
    (!name.is_empty()).then_some((name, value, after))
}

/// Returns the position of the closing quote.
fn end_of_quoted(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })
}

/// Reads an address as proxies write it: with or without a port, IPv6 with or without brackets
/// and zone. An IPv4 address that is mapped into IPv6 is the IPv4 address. `None` for anything
/// else: `unknown`, `_hidden`, a name, nothing.
fn address(node: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(node).ok()?;
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, after) = bracketed.split_once(']')?;
        let ends = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return ipv6(address).filter(|_| ends);
    }
    if let Some(address) = ipv6(text) {
        return Some(address);
    }
    let address = match text.split_once(':') {
        Some((address, port)) if is_port(port) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

fn ipv6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        Some((address, zone)) if is_zone(zone) => address,
        Some(_) => return None,
        None => text,
    };
    let address = address.parse::<Ipv6Addr>().ok()?;
    Some(IpAddr::V6(address).to_canonical())
}

/// Returns true for a port number, or an obfuscated port (RFC 7239, 6.2).
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(hidden) => !hidden.is_empty() && hidden.bytes().all(is_unreserved),
        None => matches!(text.len(), 1..=5) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn is_zone(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_unreserved)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Removes surrounding blanks (RFC 9110, 5.6.3).
pub(super) fn trimmed(text: &[u8]) -> &[u8] {
    let is_other = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = text.iter().position(is_other);
    let end = text.iter().rposition(is_other);
    match (start, end) {
        (Some(start), Some(end)) => text.get(start..=end).unwrap_or_default(),
        _ => &[],
    }
}
