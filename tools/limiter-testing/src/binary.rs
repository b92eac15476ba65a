//! Finds the server program.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const VARIABLE: &str = "REDIS_SERVER";
const NAMES: [&str; 2] = ["redis-server", "valkey-server"];
const HINT: &str = "install Redis 6.2 or later (Debian, Ubuntu: `apt-get install redis-server`; Fedora, \
                    Alpine, Homebrew: the package `redis`), or run `cargo xtask test`, which does that";

/// Returns the path of the server program, or an error that names the remedy.
pub(crate) fn find() -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    match env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        Some(named) => locate(Path::new(&named), &path)
            .ok_or_else(|| format!("{VARIABLE} is `{}`, which is no program; {HINT}", named.display())),
        None => NAMES
            .iter()
            .find_map(|name| locate(Path::new(name), &path))
            .ok_or_else(|| format!("no redis-server on PATH; {HINT}, or name the program in {VARIABLE}")),
    }
}

/// Absolute, because the server runs in its own directory.
fn locate(program: &Path, path: &OsString) -> Option<PathBuf> {
    let candidates = if program.components().count() > 1 {
        vec![program.to_path_buf()]
    } else {
        env::split_paths(path).map(|dir| dir.join(program)).collect()
    };
    candidates
        .into_iter()
        .find(|candidate| is_program(candidate))
        .and_then(|found| std::path::absolute(found).ok())
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_searched_only_for_bare_names() {
        let path = OsString::from("/nowhere:/bin:/usr/bin");
        assert!(locate(Path::new("sh"), &path).is_some_and(|found| found.ends_with("sh")));
        assert_eq!(locate(Path::new("/nowhere/sh"), &path), None);
    }

    #[test]
    fn directory_is_not_a_program() {
        assert!(!is_program(Path::new("/bin")));
    }
}
