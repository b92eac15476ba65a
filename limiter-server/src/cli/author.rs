//! The author of changes by commands.

use std::os::unix::fs::MetadataExt;

use clap::Args;

use crate::admin::permissions::Actor;

/// The longest name of an author in bytes: that of the database less the prefix.
const MAX_BYTES: usize = 200;

/// The argument that names the author of a change.
#[derive(Args, Debug)]
pub(super) struct AuthorArgs {
    /// Author in the history and in the audit. Default: the user of the operating system.
    #[arg(long, value_name = "NAME", env = "LIMITER_AUTHOR", value_parser = parse_author)]
    author: Option<String>,
}

impl AuthorArgs {
    /// Returns the name of the author, with the mark of a command.
    pub(super) fn name(&self) -> String {
        let name = self.author.clone().or_else(user_of_system);
        format!("command:{}", name.as_deref().unwrap_or("operator"))
    }

    /// Returns the operator of the command. Access to the database is access to everything.
    pub(super) fn operator(&self) -> Actor {
        Actor::new(self.name(), true, &[])
    }
}

fn parse_author(text: &str) -> Result<String, String> {
    let is_plain = !text.chars().any(char::is_control) && text.trim() == text;
    match !text.is_empty() && text.len() <= MAX_BYTES && is_plain {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected a name of 1 to {MAX_BYTES} bytes without control characters and outer spaces"
        )),
    }
}

/// Returns the user that runs this process; behind `sudo`, the user that called it.
fn user_of_system() -> Option<String> {
    let user = std::fs::metadata("/proc/self").ok().map(|of| of.uid());
    let of_variable = |name: &str| std::env::var(name).ok().and_then(|name| parse_author(&name).ok());
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    match user {
        Some(0) => of_variable("SUDO_USER"),
        _ => None,
    }
    .or_else(|| name_of_user(&users, user?))
    .or_else(|| of_variable("USER"))
}

/// Returns the name of a user in the format of `passwd(5)`: `name:password:uid:…`.
fn name_of_user(users: &str, user: u32) -> Option<String> {
    let of_user = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let is_it = fields.nth(1)?.parse() == Ok(user);
        is_it.then_some(name)
    });
    parse_author(of_user?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_found_by_its_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_of_user(users, 1_000).as_deref(), Some("ann"));
        assert_eq!(name_of_user(users, 1_001), None);
        assert_eq!(name_of_user("malformed", 0), None);
    }

    #[test]
    fn author_is_a_plain_name() {
        assert_eq!(parse_author("Ann Example").as_deref(), Ok("Ann Example"));
        for wrong in ["", " ann", "a\nb", &"x".repeat(201)] {
            assert!(parse_author(wrong).is_err(), "{wrong}");
        }
    }
}
