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
    assert!(page.contains("prefers-color-scheme:dark"));
}

#[test]
fn page_has_at_most_five_text_sizes() {
    let page = page(&Files::new(), &["--suggest"]);
    let sizes = page
        .match_indices("font-size:")
        .map(|(at, _)| page[at..].split([';', '}']).next().unwrap());
    let mut sizes: Vec<&str> = sizes.collect();
    sizes.push("font-size:15px");
    sizes.sort_unstable();
    sizes.dedup();
    assert!(sizes.len() <= 5, "{sizes:?}");
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
