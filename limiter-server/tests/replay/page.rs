//! The HTML report.

use crate::command::Files;

fn page(files: &Files, args: &[&str]) -> String {
    let path = files.path("report.html");
    let (code, _, errors) = files.replay(&[args, &["--html", &path]].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn page_is_one_file_without_scripts() {
    let files = Files::new();
    let other = files.path("policies.toml");
    let page = page(&files, &["--suggest", "--compare", &other]);
    for forbidden in [
        "<script", "http:", "https:", "url(", "@import", "<link", "<img", "onload",
    ] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("57.1 % of calls are above a limit"), "{page}");
    for section in ["Comparison", "Suggested token bucket", "requests", "Accuracy"] {
        assert!(page.contains(&format!("<h2>{section}</h2>")), "{section}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
}

#[test]
fn page_has_at_most_five_text_sizes() {
    let page = page(&Files::new(), &["--suggest"]);
    let sizes = page
        .match_indices("font-size:")
        .map(|(at, _)| page[at..].split([';', '}']).next().unwrap());
    let mut sizes: Vec<&str> = sizes.collect();
    sizes.push("font-size:var(--size-text)");
    sizes.sort_unstable();
    sizes.dedup();
    assert!(sizes.len() <= 5, "{sizes:?}");
    assert!(sizes.iter().all(|size| size.contains("var(--size-")), "{sizes:?}");
}

/// A custom property is defined once for each theme, with the value of the admin UI, and the report
/// uses no other colour.
#[test]
fn page_has_colours_and_sizes_of_admin_ui() {
    const ADMIN: &str = include_str!("../../src/admin/pages/assets/style.css");
    let page = page(&Files::new(), &["--suggest"]);
    let properties = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim);
        let defined = lines.filter(|line| line.starts_with("--") && line.ends_with(';'));
        defined.map(str::to_owned).collect()
    };
    assert_eq!(properties(&page), properties(ADMIN));
    assert!(properties(ADMIN).len() >= 20);
    let (_, after) = page.split_once("*{box-sizing").unwrap();
    let is_colour = |at: usize| {
        let digits = after[at + 1..].bytes().take_while(u8::is_ascii_hexdigit).count();
        matches!(digits, 3 | 6)
    };
    let colours: Vec<usize> = after
        .match_indices('#')
        .map(|(at, _)| at)
        .filter(|at| is_colour(*at) && !after[..*at].ends_with('&'))
        .collect();
    assert!(colours.is_empty(), "{:?}", &after[colours[0]..][..8]);
}

#[test]
fn keys_are_escaped_in_page() {
    let files = Files::new();
    let call = "{\"ts\":1767268800,\"user\":\"<script>alert('&')</script>\"}\n";
    files.write("access.log", &call.repeat(9));
    let page = page(&files, &["--key", "user"]);
    assert!(
        page.contains("&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;"),
        "{page}"
    );
    assert!(!page.contains("<script"));
}
