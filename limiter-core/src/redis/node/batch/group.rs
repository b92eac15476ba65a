//! The calls of a batch in groups, each of which is one call of the script.
//!
//! In a cluster, the declared keys of a call must be in one slot, and the fixed cost of a call
//! exceeds that of a decision. Decisions with one key are therefore sent in one call for all slots
//! of the node, which Redis supports since version 7: each command checks that the node serves the
//! slot of its key. A decision whose key is elsewhere changes nothing, and is sent again in a call
//! for its slot, which the node redirects. So are all decisions if the server rejects the call.
//!
//! Invariant: decisions for one slot are executed in order of arrival, unless one of them is sent
//! again. Tests: `tests/cluster_batches.rs`.

use std::time::Duration;

use bb8_redis::redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use crate::redis::client::connection::Asking;
use crate::redis::client::failure::Failure;
use crate::redis::dispatch::BatchPart;
use crate::redis::dispatch::queue::QueuedCall;
use crate::redis::node::across_slots::PauseReason;
use crate::redis::script::wire::Item;
use crate::redis::script::{is_unknown, reply, wire};
use crate::units::Timestamp;

/// The reference of a call to the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    Hash,
    Text,
}

/// Calls that one call of the script decides.
#[derive(Debug)]
pub(super) struct BatchGroup {
    pub(super) entries: Vec<QueuedCall>,
    asking: Asking,
    naming: Naming,
    /// True if the keys are in several slots.
    is_across: bool,
}

/// Groups the entries by batch part and keeps their order within a part. Parts whose decisions have
/// one key each are one group.
pub(super) fn groups_across_slots(entries: Vec<QueuedCall>) -> Vec<BatchGroup> {
    let groups = groups_by_slot(entries);
    if groups.len() == 1 {
        return groups;
    }
    let (across, mut groups): (Vec<_>, Vec<_>) = groups.into_iter().partition(BatchGroup::fits_across_slots);
    let is_across = across.len() > 1;
    let entries: Vec<QueuedCall> = across.into_iter().flat_map(|group| group.entries).collect();
    if !entries.is_empty() {
        groups.push(BatchGroup {
            is_across,
            ..BatchGroup::new(entries, Asking::Omitted)
        });
    }
    groups
}

/// Groups the entries by batch part and keeps their order within a part.
pub(super) fn groups_by_slot(entries: Vec<QueuedCall>) -> Vec<BatchGroup> {
    // Outside of a cluster, there is one part.
    match single_part(&entries) {
        Some(BatchPart { asking, .. }) => vec![BatchGroup::new(entries, asking)],
        None => by_part(entries),
    }
}

fn single_part(entries: &[QueuedCall]) -> Option<BatchPart> {
    let part = entries.first()?.part;
    entries.iter().all(|entry| entry.part == part).then_some(part)
}

fn by_part(mut entries: Vec<QueuedCall>) -> Vec<BatchGroup> {
    entries.sort_by_key(|entry| entry.part);
    let mut groups = Vec::new();
    let mut entries = entries.into_iter().peekable();
    while let Some(first) = entries.next() {
        let part = first.part;
        let mut group = vec![first];
        while let Some(next) = entries.next_if(|entry| entry.part == part) {
            group.push(next);
        }
        groups.push(BatchGroup::new(group, part.asking));
    }
    groups
}

impl BatchGroup {
    fn new(entries: Vec<QueuedCall>, asking: Asking) -> Self {
        Self {
            entries,
            asking,
            naming: Naming::Hash,
            is_across: false,
        }
    }

    fn fits_across_slots(&self) -> bool {
        self.asking == Asking::Omitted && self.entries.iter().all(|entry| entry.input.fits_across_slots())
    }

    /// Builds the command.
    pub(super) fn command(&self, now: Option<Timestamp>) -> (Cmd, Asking) {
        let items = self.items();
        // The batch handles the deadlines of its callers itself.
        let call = if self.is_across {
            wire::call_across_slots(&items, now, Duration::MAX)
        } else {
            wire::call(&items, now, Duration::MAX)
        };
        let command = match self.naming {
            Naming::Hash => call.by_hash(),
            Naming::Text => call.by_text(),
        };
        (command, self.asking)
    }

    /// Delivers the reply. Returns its meaning for later calls across slots, and the groups to be
    /// sent again.
    pub(super) fn finish(self, answer: Result<Value, RedisError>) -> (Option<PauseReason>, Vec<Self>) {
        let reply = match answer {
            Ok(reply) => reply,
            // NOSCRIPT proves that nothing was executed.
            Err(error) if self.naming == Naming::Hash && is_unknown(&error) => {
                let naming = Naming::Text;
                return (None, vec![Self { naming, ..self }]);
            }
            Err(error) => {
                return match rejection(&error).filter(|_| self.is_across) {
                    Some(reason) => (Some(reason), by_part(self.entries)),
                    None => {
                        fail(self.entries, &Failure::Answered(error));
                        (None, Vec::new())
                    }
                };
            }
        };
        let replies = match reply::verdicts(&reply, &self.items()) {
            Ok(replies) => replies,
            Err(error) => {
                fail(self.entries, &Failure::Undecided(error));
                return (None, Vec::new());
            }
        };
        let mut elsewhere = Vec::new();
        for (entry, replies) in self.entries.into_iter().zip(replies) {
            if replies.is_empty() && self.is_across {
                elsewhere.push(entry);
                continue;
            }
            entry.send_replies(
                replies
                    .into_iter()
                    .map(|verdict| verdict.map_err(Failure::Undecided)),
            );
        }
        let reason = (!elsewhere.is_empty()).then_some(PauseReason::Moving);
        (reason, by_part(elsewhere))
    }

    fn items(&self) -> Vec<Item<'_>> {
        let entries = self.entries.iter();
        entries
            .map(|entry| (&*entry.input, entry.callers.len()))
            .collect()
    }
}

/// Returns why a server rejected a call across slots before it executed anything; `None` for other
/// errors.
fn rejection(error: &RedisError) -> Option<PauseReason> {
    use ServerErrorKind::{Ask, ClusterDown, CrossSlot, Moved, TryAgain};
    match error.kind() {
        ErrorKind::Server(Moved | Ask | TryAgain | ClusterDown) => Some(PauseReason::Moving),
        ErrorKind::Server(CrossSlot) => Some(PauseReason::Unsupported),
        _ => {
            let detail = error.to_string();
            // Redis 6.2 compiles the first line; other servers may not know its flag.
            let is_unsupported = ["ompiling script", "shebang"]
                .iter()
                .any(|text| detail.contains(text));
            // Redis rejects the call as a whole if its memory is full, or if it accepts no writes
            // for want of replicas or of a working disk. A script without flags fails only when it
            // writes, so denials do not fail.
            let rejects_writes =
                detail.contains("allow-oom") || matches!(error.code(), Some("NOREPLICAS" | "MISCONF"));
            match (is_unsupported, rejects_writes) {
                (true, _) => Some(PauseReason::Unsupported),
                (false, true) => Some(PauseReason::Moving),
                (false, false) => None,
            }
        }
    }
}

/// Sends all callers the same failure.
pub(super) fn fail(entries: Vec<QueuedCall>, failure: &Failure) {
    entries.into_iter().for_each(|entry| entry.fail(failure));
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::{RedisError, ServerErrorKind, Value, make_extension_error};
    use smallvec::smallvec;
    use tokio::sync::oneshot;

    use super::*;
    use crate::redis::dispatch::queue::{BatchCaller, BatchReply};
    use crate::redis::dispatch::tests::check;
    use crate::support::real_time::CallDeadline;

    fn entry(slot: u16, limits: &[(&str, u64)]) -> (QueuedCall, oneshot::Receiver<BatchReply>) {
        let (caller, reply) = BatchCaller::new(CallDeadline::after(Duration::from_secs(1)));
        let part = BatchPart {
            slot,
            asking: Asking::Omitted,
        };
        let input = std::sync::Arc::clone(check(limits).input());
        let callers = smallvec![caller];
        (QueuedCall { part, input, callers }, reply)
    }

    /// The number of entries, and whether the keys are in several slots, of each group.
    fn shape(groups: &[BatchGroup]) -> Vec<(usize, bool)> {
        groups
            .iter()
            .map(|group| (group.entries.len(), group.is_across))
            .collect()
    }

    fn entries(slots: &[u16]) -> (Vec<QueuedCall>, Vec<oneshot::Receiver<BatchReply>>) {
        slots.iter().map(|slot| entry(*slot, &[("key", 1)])).unzip()
    }

    #[test]
    fn single_limits_of_several_slots_are_one_group() {
        let (one_slot, _replies) = entries(&[7, 7]);
        assert_eq!(shape(&groups_across_slots(one_slot)), [(2, false)]);
        let (several, _replies) = entries(&[7, 3, 7]);
        assert_eq!(shape(&groups_by_slot(several)), [(1, false), (2, false)]);
        let (several, _replies) = entries(&[7, 3, 7]);
        assert_eq!(shape(&groups_across_slots(several)), [(3, true)]);
        // A decision with two keys, and the others of its slot, are decided apart.
        let (mut several, _replies) = entries(&[7, 3, 5]);
        let (two_keys, _reply) = entry(7, &[("a", 1), ("b", 1)]);
        several.push(two_keys);
        assert_eq!(shape(&groups_across_slots(several)), [(2, false), (2, true)]);
        let (mut several, _replies) = entries(&[7, 3, 5]);
        several[0].part.asking = Asking::Required;
        assert_eq!(shape(&groups_across_slots(several)), [(1, false), (2, true)]);
    }

    #[test]
    fn rejected_group_is_sent_again_by_slot() {
        let server = |kind: ServerErrorKind| RedisError::from((ErrorKind::Server(kind), "rejected"));
        let other = |text: &str| make_extension_error("ERR".to_owned(), Some(text.to_owned()));
        let rejects_writes = |code: &str| make_extension_error(code.to_owned(), None);
        let errors = [
            (server(ServerErrorKind::Moved), PauseReason::Moving),
            (server(ServerErrorKind::CrossSlot), PauseReason::Unsupported),
            (
                other("Error compiling script (new function): user_script:1: unexpected symbol near '#'"),
                PauseReason::Unsupported,
            ),
            (
                other("Unexpected flag in script shebang: allow-cross-slot-keys"),
                PauseReason::Unsupported,
            ),
            (
                other(
                    "allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
                ),
                PauseReason::Moving,
            ),
            (rejects_writes("NOREPLICAS"), PauseReason::Moving),
            (rejects_writes("MISCONF"), PauseReason::Moving),
        ];
        for (error, reason) in errors {
            let (several, _replies) = entries(&[7, 3, 7]);
            let group = groups_across_slots(several).remove(0);
            let (paused, again) = group.finish(Err(error));
            assert_eq!(
                (paused, shape(&again)),
                (Some(reason), vec![(1, false), (2, false)])
            );
        }
    }

    #[test]
    fn error_within_script_is_not_repeated() {
        let (several, replies) = entries(&[7, 3]);
        let error = make_extension_error("ERR".to_owned(), Some("error running script".to_owned()));
        let (paused, again) = groups_across_slots(several).remove(0).finish(Err(error));
        assert_eq!((paused, again.len()), (None, 0));
        for mut reply in replies {
            assert!(matches!(reply.try_recv(), Ok(Err(Failure::Answered(_)))));
        }
    }

    #[test]
    fn keys_of_other_nodes_are_sent_again_by_slot() {
        let (several, mut replies) = entries(&[3, 7]);
        // The moment; then no grant of the first key, and its state; one grant of the second key.
        let mut reply = 1_u64.to_le_bytes().to_vec();
        reply.extend([0, 0, 3]);
        reply.extend([1, 0, reply::READABLE, 0]);
        let (paused, again) = groups_across_slots(several)
            .remove(0)
            .finish(Ok(Value::BulkString(reply)));
        assert_eq!(
            (paused, shape(&again)),
            (Some(PauseReason::Moving), vec![(1, false)])
        );
        assert_eq!(again[0].entries[0].part.slot, 3);
        assert!(replies[0].try_recv().is_err());
        assert!(matches!(replies[1].try_recv(), Ok(Ok(_))));
    }
}
