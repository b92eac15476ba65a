//! Edits one entry that code has added to a registry.

use crate::error::ConfigError;
use crate::registry::change::in_current_generation;
use crate::registry::{EntryEdit, PolicyEntry, PolicyRegistry};
use crate::support::clock::Clock;

impl PolicyRegistry {
    /// Replaces the entry that code has added under a name, while the registry is locked. `change`
    /// receives the effective entry and returns the new one.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] if the change would have no effect because a file or Redis defines
    /// the policy, and the errors of `change`.
    pub(crate) fn edit_code<T>(
        &self,
        name: &str,
        change: impl FnOnce(Option<&PolicyEntry>) -> Result<(T, EntryEdit), ConfigError>,
    ) -> Result<T, ConfigError> {
        let mut sources = self.sources();
        let counts = self.get(name);
        let (answer, edit) = change(counts.as_deref())?;
        if !matches!(edit, EntryEdit::Keep) && !sources.is_left_to_code(name) {
            let expected = "a policy that neither a file nor Redis defines";
            return Err(ConfigError::invalid("policy to change in code", name, expected));
        }
        let now = Clock::System.now();
        let changes = match edit {
            EntryEdit::Keep => false,
            EntryEdit::Put(entry) => {
                let left = sources.generation_in_code(name);
                sources.set_in_code(in_current_generation(*entry, left), now)
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
