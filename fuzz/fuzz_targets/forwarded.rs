//! What clients and proxies write of whom a request was forwarded for.
#![no_main]

libfuzzer_sys::fuzz_target!(
    |request: limiter_fuzz::forwarded::Request| limiter_fuzz::forwarded::check(&request)
);
