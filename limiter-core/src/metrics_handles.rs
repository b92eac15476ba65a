//! Handles of metrics, taken from the recorder once, as soon as a recorder is installed.
//!
//! Without a recorder the facade returns handles that never record, also after a recorder is
//! installed. So no handle is stored before that. The module depends on no other: policies store
//! the handles of their counters, and [`observe`](crate::observe) records through them.

use std::fmt;
use std::sync::OnceLock;

use metrics::{Counter, NoopRecorder, Recorder};

/// A handle, once there is a recorder.
#[derive(Debug)]
pub(crate) struct LazyHandle<H>(OnceLock<H>);

impl<H> LazyHandle<H> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Returns the handle, and creates it on the first call with a recorder.
    #[inline]
    pub(crate) fn get(&self, make: impl FnOnce(&dyn Recorder) -> H) -> Option<&H> {
        match self.0.get() {
            Some(handle) => Some(handle),
            None => self.make(make),
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn is_initialised(&self) -> bool {
        self.0.get().is_some()
    }

    #[cold]
    fn make(&self, make: impl FnOnce(&dyn Recorder) -> H) -> Option<&H> {
        metrics::with_recorder(|recorder| is_real(recorder).then(|| self.0.get_or_init(|| make(recorder))))
    }
}

/// True if a real recorder is installed. `metrics` hides the type of its no-op recorder, so the
/// zero-sized one is recognised by its size.
fn is_real(recorder: &dyn Recorder) -> bool {
    const { assert!(size_of::<NoopRecorder>() == 0) };
    size_of_val(recorder) > 0
}

/// The number of outcomes that are counted separately.
pub(crate) const OUTCOMES: usize = 8;
/// The number of origins, and of decisions without one, that are counted separately.
pub(crate) const ORIGINS: usize = 13;

/// The handles of the counters of one policy, by origin and outcome. Most are never needed; each is
/// made for its first count.
#[derive(Default)]
pub(crate) struct PolicyCounters([OnceLock<Box<[LazyHandle<Counter>; OUTCOMES]>>; ORIGINS]);

impl PolicyCounters {
    /// Returns the handle for an origin and an outcome, given by their numbers.
    #[inline]
    pub(crate) fn get(&self, origin: usize, outcome: usize) -> Option<&LazyHandle<Counter>> {
        let counters = self.0.get(origin)?;
        let counters = counters.get_or_init(|| Box::new([const { LazyHandle::new() }; OUTCOMES]));
        counters.get(outcome)
    }
}

/// A policy derived from another one has its own handles of the same counters.
impl Clone for PolicyCounters {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for PolicyCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PolicyCounters")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::metrics_handles::*;

    #[test]
    fn handle_is_created_with_first_recorder() {
        let handle = LazyHandle::new();
        assert!(handle.get(|_| unreachable!("there is no recorder")).is_none());
        // It has a size, like every recorder except the no-op recorder.
        let recorder = Arc::new(NoopRecorder);
        metrics::with_local_recorder(&recorder, || assert_eq!(handle.get(|_| 7), Some(&7)));
        assert_eq!(
            handle.get(|_| unreachable!("the handle is created once")),
            Some(&7)
        );
    }
}
