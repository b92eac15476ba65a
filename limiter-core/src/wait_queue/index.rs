//! Index of queues with several limits: a refund of one limit may serve each queue that contains
//! it.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::identity::Identity;
use crate::wait_queue::QueueId;

/// The queues with several limits, by each of their limits.
#[derive(Debug, Default)]
pub(crate) struct QueueIndex(HashMap<Identity, SmallVec<[QueueId; 1]>>);

impl QueueIndex {
    /// Adds a new queue.
    pub(crate) fn add(&mut self, id: &QueueId) {
        if id.len() > 1 {
            for identity in id {
                self.0.entry(*identity).or_default().push(id.clone());
            }
        }
    }

    /// Removes a queue.
    pub(crate) fn remove(&mut self, id: &QueueId) {
        if id.len() > 1 {
            for identity in id {
                if let Some(ids) = self.0.get_mut(identity) {
                    ids.retain(|other| other != id);
                    if ids.is_empty() {
                        self.0.remove(identity);
                    }
                }
            }
        }
    }

    /// Returns the queues that contain this limit beside others.
    pub(crate) fn with(&self, identity: Identity) -> &[QueueId] {
        self.0.get(&identity).map_or(&[], |ids| ids)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
