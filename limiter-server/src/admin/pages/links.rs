//! Paths of pages and of routes of the API.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters that a segment of a path contains as they are.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'*');

/// Returns a text as one segment of a path, or one value of a query.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Returns a path of encoded segments.
pub(super) fn path(segments: &[&str]) -> String {
    segments
        .iter()
        .fold(String::new(), |path, segment| path + "/" + &encode(segment))
}

/// Returns the path of an object of an environment in the API.
pub(super) fn api(environment: &str, segments: &[&str]) -> String {
    path(&["namespaces", environment]) + &path(segments)
}

/// Returns the path of a page of an environment.
pub(super) fn page(environment: &str, segments: &[&str]) -> String {
    path(&["e", environment]) + &path(segments)
}

/// Returns the page of a customer by the whole key. A key can look like one part of keys, and can
/// start or end with a space; clients choose keys.
pub(super) fn customer(environment: &str, key: &str) -> String {
    let page = page(environment, &["customers"]);
    let whole = match key.contains('=') || key.trim() != key {
        true => "&whole=1",
        false => "",
    };
    format!("{page}?key={}{whole}", encode(key))
}

/// Returns the sign-in page that leads to a page afterwards.
pub(super) fn sign_in_href(next: &str) -> String {
    match next {
        "/" => "/signin".to_owned(),
        next => format!("/signin?next={}", encode(next)),
    }
}

/// Returns the page to show after a sign-in: a path of this server, or the first page.
///
/// Browsers read `//host` and `/\host` as another host, and remove control characters.
pub(super) fn safe_next(next: Option<&str>) -> &str {
    let is_path = |next: &&str| {
        let rest = next.strip_prefix('/');
        let is_local = rest.is_some_and(|rest| !rest.starts_with(['/', '\\']));
        is_local && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
    };
    next.filter(is_path).unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_page_is_a_path_of_this_server() {
        for path in ["/", "/e/prod/apps?q=a%20b", "/e/a/policies/x"] {
            assert_eq!(safe_next(Some(path)), path);
        }
        for other in [
            "",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "evil",
            "/\t/evil.example",
            "/a\\b",
            "javascript:alert(1)",
            "/\u{e4}",
        ] {
            assert_eq!(safe_next(Some(other)), "/", "{other:?}");
        }
    }

    #[test]
    fn names_are_one_segment() {
        assert_eq!(
            page("prod", &["policies", "a/b <c>"]),
            "/e/prod/policies/a%2Fb%20%3Cc%3E"
        );
        assert_eq!(api("x", &["apps"]), "/namespaces/x/apps");
        assert_eq!(customer("prod", "acme"), "/e/prod/customers?key=acme");
        for (key, encoded) in [("a=b", "a%3Db"), (" a", "%20a")] {
            let expected = format!("/e/prod/customers?key={encoded}&whole=1");
            assert_eq!(customer("prod", key), expected);
        }
        assert_eq!(sign_in_href("/e/a?q=1"), "/signin?next=%2Fe%2Fa%3Fq%3D1");
    }
}
