//! Every page of the demonstration in a browser: accessibility, layout, console, pictures.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

#[path = "browser/layout.rs"]
mod layout;
#[path = "browser/pages.rs"]
mod pages;
