//! Forwarding headers of clients and proxies.
#![no_main]

libfuzzer_sys::fuzz_target!(
    |request: limiter_fuzz::forwarded::Request| limiter_fuzz::forwarded::check(&request)
);
