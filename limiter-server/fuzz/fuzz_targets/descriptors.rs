//! Requests of Envoy.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limiter_server_fuzz::descriptors::check(bytes));
