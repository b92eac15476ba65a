//! Handles of metrics, taken from the recorder once, as soon as there is one.
//!
//! Without a recorder the facade gives handles that do nothing, for good: whoever keeps one stays silent though a recorder is
//! installed a moment later. So nothing is kept until then.

use std::sync::OnceLock;

use metrics::{NoopRecorder, Recorder};

/// A handle, once there is a recorder.
#[derive(Debug)]
pub(super) struct LazyHandle<H>(OnceLock<H>);

impl<H> LazyHandle<H> {
    pub(super) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The handle, made now if it is the first time that there is a recorder to make it.
    #[inline]
    pub(super) fn get(&self, make: impl FnOnce(&dyn Recorder) -> H) -> Option<&H> {
        match self.0.get() {
            Some(handle) => Some(handle),
            None => self.make(make),
        }
    }

    #[cfg(feature = "redis")]
    pub(super) fn is_made(&self) -> bool {
        self.0.get().is_some()
    }

    #[cold]
    fn make(&self, make: impl FnOnce(&dyn Recorder) -> H) -> Option<&H> {
        metrics::with_recorder(|recorder| is_real(recorder).then(|| self.0.get_or_init(|| make(recorder))))
    }
}

/// Whether it is more than what stands in while none is installed. That one cannot be told by its type, which is hidden, nor
/// by its address, which nobody is told; but it holds nothing, and whatever records holds something.
fn is_real(recorder: &dyn Recorder) -> bool {
    const { assert!(size_of::<NoopRecorder>() == 0) };
    size_of_val(recorder) > 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::observe::lazy_handle::*;

    #[test]
    fn nothing_is_kept_before_there_is_a_recorder() {
        let late = LazyHandle::new();
        assert!(late.get(|_| unreachable!("there is no recorder")).is_none());
        // It has a size, as every recorder that is not the placeholder.
        let recorder = Arc::new(NoopRecorder);
        metrics::with_local_recorder(&recorder, || assert_eq!(late.get(|_| 7), Some(&7)));
        assert_eq!(late.get(|_| unreachable!("it is made once")), Some(&7));
    }
}
