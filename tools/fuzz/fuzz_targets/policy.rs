//! Policies as people write them.
#![no_main]

libfuzzer_sys::fuzz_target!(|written: limiter_fuzz::policy::Written| written.check());
