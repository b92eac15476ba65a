//! The results of concurrent tasks.
//!
//! The runtime cancels all its tasks when it ends, and may poll the task that awaits them once
//! more. `JoinSet::join_all` panics then.

use tokio::task::JoinSet;

/// Awaits all tasks and returns the results of those that completed, in the order in which they
/// completed. A task that panicked or was cancelled has no result.
pub(crate) async fn join_completed<T: 'static>(mut tasks: JoinSet<T>) -> Vec<T> {
    let mut results = Vec::with_capacity(tasks.len());
    while let Some(ended) = tasks.join_next().await {
        results.extend(ended);
    }
    results
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn tasks_that_their_runtime_cancelled_have_no_result() {
        let ended = Builder::new_current_thread().build().unwrap();
        let mut tasks = JoinSet::new();
        let completed = tasks.spawn_on(ready(7), ended.handle());
        while !completed.is_finished() {
            ended.block_on(tokio::task::yield_now());
        }
        tasks.spawn_on(pending(), ended.handle());
        drop(ended);
        let waiting = Builder::new_current_thread().build().unwrap();
        assert_eq!(waiting.block_on(join_completed(tasks)), [7]);
    }
}
