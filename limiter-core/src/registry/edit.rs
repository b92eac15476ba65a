//! Changes one entry of a registry that is kept in process.

use crate::error::ConfigError;
use crate::registry::change::going_on;
use crate::registry::{EntryEdit, PolicyEntry, PolicyRegistry};
use crate::support::clock::Clock;

impl PolicyRegistry {
    /// Changes what code says of a name by what counts under it, with nobody else changing the
    /// registry meanwhile. `change` is told what counts, and says what becomes of it.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] where it would change nothing, since a file or Redis says what
    /// counts; what `change` says.
    pub(crate) fn edit_code<T>(
        &self,
        name: &str,
        change: impl FnOnce(Option<&PolicyEntry>) -> Result<(T, EntryEdit), ConfigError>,
    ) -> Result<T, ConfigError> {
        let mut sources = self.sources();
        let counts = self.get(name);
        let (answer, edit) = change(counts.as_deref())?;
        if !matches!(edit, EntryEdit::Keep) && !sources.is_left_to_code(name) {
            let expected = "a policy that no file and no Redis names";
            return Err(ConfigError::invalid(
                "policy to be changed by code",
                name,
                expected,
            ));
        }
        let now = Clock::System.now();
        let changes = match edit {
            EntryEdit::Keep => false,
            EntryEdit::Put(entry) => {
                let left = sources.generation_in_code(name);
                sources.set_in_code(going_on(*entry, left), now)
            }
            EntryEdit::Remove(ended) => {
                sources.remove_from_code(name, now);
                sources.set_in_code(*ended, now)
            }
        };
        if changes {
            self.renew(&sources, name);
        }
        Ok(answer)
    }
}
