//! The clients of the settings file, which can be read again while the server runs.

use std::path::PathBuf;

use crate::access::AccessTable;
use crate::settings::file::SettingsFile;

/// The file that configures the clients.
#[derive(Clone, Debug)]
pub(crate) struct ClientSource {
    /// The settings file, which does not need to exist.
    pub(crate) path: PathBuf,
    /// Its text at the start.
    pub(crate) text: Option<String>,
    /// True if a table without clients is rejected.
    pub(super) requires_clients: bool,
}

impl ClientSource {
    /// Reads the file, and blocks the thread; `None` if it cannot be read. Only a regular file is
    /// read: the read of a pipe ends when its writer ends it, which may never happen.
    pub(crate) fn read(&self) -> Option<String> {
        let is_file = std::fs::metadata(&self.path).is_ok_and(|metadata| metadata.is_file());
        is_file
            .then(|| std::fs::read_to_string(&self.path).ok())
            .flatten()
    }

    /// Returns the clients of a text of the file.
    ///
    /// # Errors
    ///
    /// The reason why the text cannot be used.
    pub(crate) fn clients(&self, text: Option<&str>) -> Result<AccessTable, String> {
        let text = text.ok_or("the file cannot be read")?;
        let mut file = SettingsFile::parse(text)?;
        let table = file.clients()?;
        if self.requires_clients && table.is_empty() {
            return Err(
                "it has no [[token]] and no [[client]], expected one because other machines reach a listener"
                    .to_owned(),
            );
        }
        Ok(table)
    }
}
