//! The audit as lines of JSON, for a log pipeline.
//!
//! A line is written after the commit of its transaction, so a change that was rolled back leaves
//! none. A process that ends between both leaves an entry in the database without a line.

use std::io::Write as _;

/// The output to which a process writes the entries of the audit besides the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditLines {
    /// Nowhere.
    #[default]
    None,
    /// To standard output, of a server.
    Stdout,
    /// To standard error, of a command that prints its result to standard output.
    Stderr,
}

impl AuditLines {
    /// Writes lines. A closed output does not fail the change, which is in the database.
    pub(super) fn write(self, lines: &[String]) {
        if lines.is_empty() {
            return;
        }
        let mut text = lines.join("\n");
        text.push('\n');
        let _ = match self {
            Self::None => Ok(()),
            Self::Stdout => std::io::stdout().lock().write_all(text.as_bytes()),
            Self::Stderr => std::io::stderr().lock().write_all(text.as_bytes()),
        };
    }
}
