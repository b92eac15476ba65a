//! Per-thread cache of policy handles: decisions on one policy by several threads take 3 ns for the
//! handle in place of 12 to 120.
//!
//! A decision outlives its call and therefore holds handles of its policies. Cloning and dropping
//! an `Arc` are two writes to a count that all threads share: 12 ns with one deciding thread and
//! ten times as much with two. Each thread therefore keeps a few handles of finished decisions and
//! reuses them: 3 ns without contention. Tests: below.

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::policy::Policy;

/// Number of slots; the address of a policy selects its slot, and a newer policy replaces an older
/// one. Handles stay in their slot until the thread ends.
const SLOTS: usize = 8;

thread_local! {
    static POLICY_CACHE: [Cell<Option<Policy>>; SLOTS] = const { [const { Cell::new(None) }; SLOTS] };
}

/// A handle of a policy, taken from the cache of the creating thread and returned to the cache of
/// the dropping thread.
pub(crate) struct CachedPolicy(
    /// `None` only in `drop`.
    Option<Policy>,
);

impl CachedPolicy {
    /// Returns a handle of a policy.
    #[inline]
    pub(crate) fn new(policy: &Policy) -> Self {
        let cached = POLICY_CACHE.try_with(|cache| {
            let slot = slot(cache, policy)?;
            match slot.take() {
                Some(own) if Arc::ptr_eq(&own.0, &policy.0) => Some(own),
                other => {
                    slot.set(other);
                    None
                }
            }
        });
        Self(Some(cached.ok().flatten().unwrap_or_else(|| policy.clone())))
    }
}

impl Drop for CachedPolicy {
    #[inline]
    fn drop(&mut self) {
        let Some(policy) = self.0.take() else { return };
        // The cache of an ending thread is already destroyed.
        let _ = POLICY_CACHE.try_with(|cache| {
            if let Some(slot) = slot(cache, &policy) {
                slot.set(Some(policy));
            }
        });
    }
}

/// Returns the slot of a policy.
#[inline]
fn slot<'a>(cache: &'a [Cell<Option<Policy>>; SLOTS], policy: &Policy) -> Option<&'a Cell<Option<Policy>>> {
    // Allocations differ in address by more than this.
    cache.get((Arc::as_ptr(&policy.0).addr() >> 6) % SLOTS)
}

impl Deref for CachedPolicy {
    type Target = Policy;

    #[inline]
    fn deref(&self) -> &Policy {
        #[expect(clippy::expect_used, reason = "only `drop` takes the handle")]
        self.0.as_ref().expect("a handle")
    }
}

impl Clone for CachedPolicy {
    fn clone(&self) -> Self {
        Self::new(self)
    }
}

impl fmt::Debug for CachedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crate::policy::thread_cache::*;

    fn policy() -> Policy {
        let policy = Policy::token_bucket("p").capacity(1).rate(1).build();
        policy.expect("valid")
    }

    fn handles(policy: &Policy) -> usize {
        Arc::strong_count(&policy.0)
    }

    #[test]
    fn repeated_decisions_do_not_change_count() {
        let policy = policy();
        drop(CachedPolicy::new(&policy));
        assert_eq!(handles(&policy), 2, "one handle is cached");
        for _ in 0..3 {
            let handle = CachedPolicy::new(&policy);
            assert_eq!((handles(&policy), &*handle), (2, &policy));
        }
    }

    #[test]
    fn thread_cache_keeps_one_of_several_handles() {
        let policy = policy();
        let handle: Vec<CachedPolicy> = (0..5).map(|_| CachedPolicy::new(&policy)).collect();
        assert_eq!(handles(&policy), 6);
        drop(handle);
        assert_eq!(handles(&policy), 2);
    }

    #[test]
    fn handle_dropped_by_thread_ends_with_it() {
        let policy = policy();
        let handle = CachedPolicy::new(&policy);
        thread::spawn(move || drop(handle)).join().expect("dropped");
        assert_eq!(handles(&policy), 1);
    }

    #[test]
    fn handle_dropped_at_thread_end_is_released() {
        thread_local! {
            static LAST: Cell<Option<CachedPolicy>> = const { Cell::new(None) };
        }
        let policy = policy();
        let for_thread = policy.clone();
        let ended = thread::spawn(move || {
            // Ends before or after the cache: in the order of first use, or in reverse.
            drop(CachedPolicy::new(&for_thread));
            LAST.set(Some(CachedPolicy::new(&for_thread)));
        });
        ended.join().expect("ended");
        let for_thread = policy.clone();
        let ended = thread::spawn(move || {
            LAST.set(None);
            LAST.set(Some(CachedPolicy::new(&for_thread)));
        });
        ended.join().expect("ended");
        assert_eq!(handles(&policy), 1);
    }

    #[test]
    fn cache_size_is_bounded() {
        let policies: Vec<Policy> = (0..100).map(|_| policy()).collect();
        policies.iter().for_each(|policy| drop(CachedPolicy::new(policy)));
        let kept = policies.iter().filter(|policy| handles(policy) == 2).count();
        assert!((1..=SLOTS).contains(&kept), "{kept}");
    }
}
