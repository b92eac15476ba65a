//! What those who follow a source have in common: the task, and what went wrong last.

use std::error::Error as _;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::task::AbortHandle;

use crate::book::text::BookError;
use crate::book::{Inner, PolicyBook};
#[cfg(feature = "redis")]
use crate::error::{StoreError, StoreErrorKind};

/// A book that is followed as long as somebody else has it.
#[derive(Clone)]
pub(super) struct WeakBook(Weak<Inner>);

impl WeakBook {
    pub(super) fn of(book: &PolicyBook) -> Self {
        Self(Arc::downgrade(&book.0))
    }

    pub(super) fn upgrade(&self) -> Option<PolicyBook> {
        self.0.upgrade().map(PolicyBook)
    }
}

/// What went wrong last, if it still is.
#[derive(Debug, Default)]
pub(super) struct Trouble(Mutex<Option<BookError>>);

impl Trouble {
    pub(super) fn last(&self) -> Option<BookError> {
        self.lock().clone()
    }

    /// Keeps it, and says whether it is something else than before.
    pub(super) fn is_new(&self, error: BookError) -> bool {
        let told = reason(&error);
        let before = self.lock().replace(error);
        before.is_none_or(|before| reason(&before) != told)
    }

    pub(super) fn is_there(&self) -> bool {
        self.lock().is_some()
    }

    /// Whether there was any.
    pub(super) fn is_over(&self) -> bool {
        self.lock().take().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<BookError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error with its causes, for a line of a log.
pub(super) fn reason(error: &BookError) -> String {
    let (mut told, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        told = format!("{told}: {error}");
        cause = error.source();
    }
    told
}

/// What a policy takes in a text, about.
#[cfg(feature = "redis")]
pub(crate) const BYTES_A_NAME: usize = 100;

/// Has a text dealt with that may be large: the runtime's threads have other things to do meanwhile.
#[cfg(feature = "redis")]
pub(crate) async fn at_leisure<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, BookError> + Send + 'static,
) -> Result<T, BookError> {
    /// What is read in less time than it takes to wake a thread.
    const SMALL: usize = 4 << 10;
    if bytes <= SMALL {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => {
                let error = StoreError::new(StoreErrorKind::ShutDown, "the runtime has ended");
                Err(BookError::Store(error))
            }
        },
    }
}

/// A task that ends with its handle.
pub(super) struct Task(Option<AbortHandle>);

impl Task {
    pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(tokio::spawn(task).abort_handle()))
    }

    #[cfg(feature = "redis")]
    pub(super) fn is_running(&self) -> bool {
        self.0.as_ref().is_some_and(|task| !task.is_finished())
    }

    /// Lets it go on by itself.
    pub(super) fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_running = self.0.as_ref().is_some_and(|task| !task.is_finished());
        f.debug_struct("Task").field("is_running", &is_running).finish()
    }
}
