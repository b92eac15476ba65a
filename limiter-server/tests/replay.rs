//! `limiter-server replay`: agreement with the limiter, inputs, reports and errors.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

#[path = "replay/agreement.rs"]
mod agreement;
#[path = "replay/command.rs"]
mod command;
#[path = "replay/guide.rs"]
mod guide;
#[path = "replay/guide_log.rs"]
mod guide_log;
#[path = "replay/input.rs"]
mod input;
#[path = "replay/page.rs"]
mod page;
#[cfg(target_os = "linux")]
#[path = "replay/progress.rs"]
mod progress;
