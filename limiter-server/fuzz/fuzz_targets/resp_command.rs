//! Commands of Redis clients.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limiter_server_fuzz::resp_command::check(bytes));
