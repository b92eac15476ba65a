//! The admin UI in a browser: the tasks of the guide, roles, conflicts, accessibility, layout,
//! console, pictures.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic"
)]

mod support;

#[path = "browser/behaviour.rs"]
mod behaviour;
#[path = "browser/environments.rs"]
mod environments;
#[path = "browser/forms.rs"]
mod forms;
#[path = "browser/layout.rs"]
mod layout;
#[path = "browser/measure.rs"]
mod measure;
#[path = "browser/outage.rs"]
mod outage;
#[path = "browser/pages.rs"]
mod pages;
#[path = "browser/panels.rs"]
mod panels;
#[path = "browser/plots.rs"]
mod plots;
#[path = "browser/refresh.rs"]
mod refresh;
#[path = "browser/scripts.rs"]
mod scripts;
#[path = "browser/tasks.rs"]
mod tasks;
