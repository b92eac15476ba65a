//! Events that the source emits with the macros of `tracing`.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of the repository.
pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// All files below a folder of the repository, with their text.
pub(crate) fn files(folder: &str) -> Vec<(PathBuf, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.push((path, text));
            }
        }
    }
    found
}

/// Level, message and names of the fields of each event.
pub(crate) fn events(path: &Path, text: &str) -> Vec<(String, String, Vec<String>)> {
    let mut events = Vec::new();
    for level in ["error", "warn", "info", "debug", "trace"] {
        for (start, call) in text.match_indices(&format!("tracing::{level}!(")) {
            let arguments = arguments(&text[start + call.len()..]);
            let (message, fields) = arguments.split_last().unwrap();
            let message = message.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let Some(message) = message else {
                panic!("{}: an event ends in its message: {arguments:?}", path.display())
            };
            let name = |field: &String| {
                let (name, _) = field.split_once('=').unwrap_or((field, ""));
                name.trim().trim_start_matches(['%', '?']).to_owned()
            };
            events.push((
                level.to_owned(),
                joined(message),
                fields.iter().map(name).collect(),
            ));
        }
    }
    events
}

/// The arguments of a call, up to its closing bracket.
fn arguments(text: &str) -> Vec<String> {
    let (mut arguments, mut argument) = (Vec::new(), String::new());
    let (mut depth, mut in_text, mut escaped) = (0, false, false);
    for letter in text.chars() {
        if in_text {
            in_text = escaped || letter != '"';
            escaped = letter == '\\' && !escaped;
        } else {
            match letter {
                '"' => in_text = true,
                '(' | '[' | '{' => depth += 1,
                ')' if depth == 0 => break,
                ')' | ']' | '}' => depth -= 1,
                ',' if depth == 0 => {
                    arguments.push(std::mem::take(&mut argument).trim().to_owned());
                    continue;
                }
                _ => {}
            }
        }
        argument.push(letter);
    }
    arguments.push(argument.trim().to_owned());
    arguments.retain(|argument| !argument.is_empty());
    arguments
}

/// Joins a text that continues on the next line.
fn joined(message: &str) -> String {
    let parts = message.split("\\\n").enumerate();
    parts
        .map(|(number, part)| if number == 0 { part } else { part.trim_start() })
        .collect()
}
