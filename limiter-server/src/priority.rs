//! The priority of threads that must not delay decisions. Only Linux has priorities of threads.
//! Verified by `tests/isolation.rs`.

/// The difference between the control plane and the gateway, in steps of `nice`.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lowers the priority of this thread, and of the threads that it starts, below the gateway's.
pub(crate) fn lower() {
    #[cfg(target_os = "linux")]
    {
        let thread = rustix::thread::gettid();
        if let Err(error) = rustix::process::setpriority_process(Some(thread), NICENESS) {
            tracing::debug!(%error, "the priority of a control thread stays that of the gateway");
        }
    }
}

/// Gives all other threads of the machine preference over this thread, for computations of
/// milliseconds that occupy a processor.
///
/// Linux lets a thread of the normal policy use its time slice of up to 3 ms before a thread of
/// higher priority replaces it. A thread of the idle policy is replaced at once. On processors
/// that others use completely it receives 0.3 % of the time.
pub(crate) fn run_when_idle() {
    #[cfg(target_os = "linux")]
    {
        use thread_priority::{NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy};

        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        // Without privileges this sets the policy and then fails to reset the inherited nice value.
        let changed = thread_priority::set_thread_priority_and_policy(
            thread_priority::thread_native_id(),
            ThreadPriority::Min,
            idle,
        );
        if thread_priority::thread_schedule_policy() != Ok(idle) {
            tracing::debug!(?changed, "a computation keeps the priority of the control plane");
        }
    }
}
