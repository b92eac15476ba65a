//! In which lines several limits are waited for as one: what comes back to one of them may be what
//! such a line waits for.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::identity::Identity;
use crate::waiting::queue::QueueId;

/// The lines of several limits, by each of these.
#[derive(Debug, Default)]
pub(crate) struct QueueIndex(HashMap<Identity, SmallVec<[QueueId; 1]>>);

impl QueueIndex {
    /// A line begins.
    pub(crate) fn add(&mut self, name: &QueueId) {
        if name.len() > 1 {
            for identity in name {
                self.0.entry(*identity).or_default().push(name.clone());
            }
        }
    }

    /// A line has ended.
    pub(crate) fn remove(&mut self, name: &QueueId) {
        if name.len() > 1 {
            for identity in name {
                if let Some(names) = self.0.get_mut(identity) {
                    names.retain(|other| other != name);
                    if names.is_empty() {
                        self.0.remove(identity);
                    }
                }
            }
        }
    }

    /// The lines in which this is waited for beside other limits.
    pub(crate) fn with(&self, identity: Identity) -> &[QueueId] {
        self.0.get(&identity).map_or(&[], |names| names)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
