//! Shared helpers of the tests.
#![allow(dead_code, reason = "each test uses its own part of it")]

use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn is_refused(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[track_caller]
pub(crate) fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "the condition is not met within ten seconds"
        );
        thread::sleep(Duration::from_millis(5));
    }
}
