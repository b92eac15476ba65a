//! Names of metrics, of their labels and the values of labels, collected from the string literals
//! of the module that records them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::assert_frozen;

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn is_word(literal: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    !literal.is_empty() && literal.bytes().all(is_letter)
}

/// Returns whether the text before a literal calls a constructor of a label with the literal as its
/// first argument, the name.
fn names_a_label(before: &str) -> bool {
    let before = before.trim_end();
    before.ends_with("Label::new(") || before.ends_with("Label::from_static_parts(")
}

#[test]
fn metric_names_and_labels_are_frozen() {
    let mut files = Vec::new();
    rust_files(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src/observe"),
        &mut files,
    );
    let [mut metrics, mut labels, mut values] = [const { BTreeSet::new() }; 3];
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//") && !line.contains("cfg("))
            .collect::<Vec<_>>()
            .join("\n");
        let parts: Vec<&str> = code.split('"').collect();
        for pair in parts.chunks_exact(2) {
            let set = match pair[1] {
                word if !is_word(word) => continue,
                word if word.starts_with("limiter_") => &mut metrics,
                _ if names_a_label(pair[0]) => &mut labels,
                _ => &mut values,
            };
            set.insert(pair[1].to_owned());
        }
    }
    assert!(
        metrics.len() > 5 && labels.len() > 3 && values.len() > 20,
        "the source directory has no files"
    );
    let mut page = String::new();
    for (title, set) in [("metrics", metrics), ("labels", labels), ("values", values)] {
        writeln!(page, "{title}:").unwrap();
        for word in set {
            writeln!(page, "  {word}").unwrap();
        }
    }
    assert_frozen("metrics.txt", &page);
}
