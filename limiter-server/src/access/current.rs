//! The clients in force.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use crate::access::{AccessDenial, AccessTable, Action, Client, Target};

/// The table in force, which a reload replaces. Cheap to clone; clones share the table.
#[derive(Clone, Debug, Default)]
pub struct Access(Arc<RwLock<Arc<AccessTable>>>);

impl Access {
    /// The access of these clients.
    #[must_use]
    pub fn new(table: AccessTable) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(table))))
    }

    /// The table in force.
    #[must_use]
    pub fn table(&self) -> Arc<AccessTable> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another table in force.
    pub fn replace(&self, table: AccessTable) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    /// Checks that a client is valid, without regard to its scopes.
    ///
    /// # Errors
    ///
    /// The reason why the client is not valid.
    pub fn validate(&self, client: &Client) -> Result<(), AccessDenial> {
        self.table().identify(client, SystemTime::now()).map(drop)
    }

    /// The name of a client, for logs.
    #[must_use]
    pub fn name_of(&self, client: &Client) -> String {
        let table = self.table();
        let name = table.identify(client, SystemTime::now());
        name.unwrap_or("unknown").to_owned()
    }

    /// Decides whether a client may take an action on a target, by [`AccessTable::may`].
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn may(&self, client: &Client, action: Action, target: &Target<'_>) -> Result<(), AccessDenial> {
        self.table().may(client, action, target, SystemTime::now())
    }
}
