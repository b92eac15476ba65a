//! Bytes that a server sends, as the client's own parser reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limiter_fuzz::reply::check_bytes(bytes));
