//! Replays access logs through policies, and computes the calls that the policies would have
//! denied.
//!
//! The lines of all files are merged by time. Each line becomes a call with a key and a cost, and
//! an in-process limiter whose clock is set to the time of the line decides it, so a replay and a
//! server reach the same decisions. Memory grows with the number of keys up to a bound, and the
//! report states the calls beyond it. Lines without a decision are counted with examples. Tests:
//! `tests/replay.rs`.

mod combined;
mod format;
mod input;
mod json_lines;
mod keys;
mod line;
mod logfmt;
mod merge;
mod outcome;
mod policies;
mod problems;
pub mod report;
mod run;
mod series;
mod source;
pub mod suggest;
mod text;
mod time;
mod timeline;
mod waits;

use std::path::PathBuf;

pub use crate::replay::format::LogFormat;
pub use crate::replay::line::KeyField;
pub use crate::replay::run::{Progress, replay};
use crate::replay::suggest::DenialTarget;

/// The default of [`ReplayOptions::max_keys`].
pub const DEFAULT_MAX_KEYS: usize = 10_000_000;

/// The selection of the policy for a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyChoice {
    /// Each policy decides each line on its own.
    Each,
    /// The policy of this name decides each line.
    Named(String),
    /// The rules of the file select the policy; the fields of the key are the descriptor.
    Rules {
        /// The domain of the descriptors.
        domain: String,
    },
}

/// The input of a replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The policy file; `None` to suggest a bucket only.
    pub policies: Option<PathBuf>,
    /// A second policy file for comparison.
    pub compare: Option<PathBuf>,
    /// The log files; `-` is standard input.
    pub logs: Vec<PathBuf>,
    /// The format; `None` to detect it from the first line of each file.
    pub format: Option<LogFormat>,
    /// The fields of the key.
    pub key: Vec<KeyField>,
    /// The field of the cost; `None` for a cost of 1.
    pub cost: Option<String>,
    /// The field of the time; `None` for the usual names.
    pub time: Option<String>,
    /// The selection of the policy.
    pub choice: PolicyChoice,
    /// The app for which policies are looked up.
    pub app: Option<String>,
    /// The largest number of keys of one policy.
    pub max_keys: usize,
    /// The target for which buckets are suggested.
    pub suggest: Option<DenialTarget>,
}
