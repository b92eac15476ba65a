//! The code paths whose instructions `cargo xtask bench --instructions` counts, and the baseline.
//!
//! Times vary with the load of a machine by more than most changes cost. The number of executed
//! instructions does not. Callgrind counts them, driven by the crate `gungraun` in
//! `benches/instructions/main.rs`, which needs an entry in [`PATHS`] for each of its functions.
//!
//! The library has no dependencies: `xtask` compares counts and `limiter-bench` prints them without
//! a build of the measured program.

mod baseline;
mod counts;

pub use baseline::{Baseline, Change, Verdict};
pub use counts::{Conditions, Counts};

/// The number of decisions in each measured function.
pub const DECISIONS: u64 = 1_024;

/// One measured function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The group and the name of the function in `benches/instructions/main.rs`.
    pub name: &'static str,
    /// The work of one of its decisions.
    pub work: &'static str,
    /// The row of the timings that measures the same work, as workload and contender.
    pub timed_as: Option<(&'static str, &'static str)>,
}

const fn path(name: &'static str, work: &'static str) -> Path {
    Path {
        name,
        work,
        timed_as: None,
    }
}

impl Path {
    const fn timed_as(mut self, workload: &'static str, contender: &'static str) -> Self {
        self.timed_as = Some((workload, contender));
        self
    }
}

/// All measured functions, in the order of the report.
pub const PATHS: &[Path] = &[
    path("in_process::one_key", "check one key").timed_as("local-1", "ours"),
    path("in_process::many_keys", "check one of 10,000 keys").timed_as("local-10k", "ours"),
    path("in_process::denied", "check a key without permits"),
    path("in_process::three_limits", "check three limits at once"),
    path("in_process::named", "check a policy of the registry by name"),
    path("in_process::peek", "peek at one key"),
    path(
        "in_process::tried_key",
        "check one key, and decide its trial values",
    ),
    path("annotated::no_key", "call an annotated function without a key"),
    path(
        "annotated::no_key_by_hand",
        "the check of that function, written by hand",
    ),
    path(
        "annotated::formatted_key",
        "call an annotated function with `key = \"user:{user}\"`",
    ),
    path(
        "annotated::formatted_key_by_hand",
        "the check of that function, written by hand with `format!`",
    ),
    path(
        "annotated::escaped_key_by_hand",
        "the check of that function, written by hand with the escaped key of the attribute",
    ),
    path(
        "annotated::borrowed_key",
        "call an annotated function with `key = \"{user}\"`",
    )
    .timed_as("macro-local", "ours"),
    path(
        "annotated::borrowed_key_by_hand",
        "the check of that function, written by hand",
    )
    .timed_as("macro-local", "by-hand"),
    path("layer::bare", "send a request to a service without a layer").timed_as("layer-local", "bare"),
    path("layer::plain", "send a request through a layer without headers").timed_as("layer-local", "ours"),
    path(
        "redis::single",
        "check in Redis, one call at a time; instructions of the client",
    )
    .timed_as("single-1", "ours"),
    path(
        "redis::batch",
        "check in Redis, 64 calls at a time; instructions of the client",
    )
    .timed_as("strict-10k-64", "ours"),
    path(
        "redis::denied_again",
        "check a key whose denial by Redis is cached",
    )
    .timed_as("hot-denied-64", "ours"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_names_are_unique() {
        for (place, path) in PATHS.iter().enumerate() {
            assert!(PATHS[..place].iter().all(|other| other.name != path.name));
        }
    }
}
