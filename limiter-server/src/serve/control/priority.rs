//! The priority of the threads of the control plane.
//!
//! Sign-ins and previews compute for milliseconds. On a machine whose processors are busy, a
//! decision would wait for the end of their time slice. With a lower priority, the threads of the
//! gateway replace them at once. Verified by `tests/isolation.rs`.

/// The difference to the priority of the gateway, in steps of `nice`.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lowers the priority of this thread, and of the threads that it starts. Only Linux has priorities
/// of threads.
pub(super) fn lower() {
    #[cfg(target_os = "linux")]
    {
        let thread = rustix::thread::gettid();
        if let Err(error) = rustix::process::setpriority_process(Some(thread), NICENESS) {
            tracing::debug!(%error, "the priority of a control thread stays that of the gateway");
        }
    }
}
