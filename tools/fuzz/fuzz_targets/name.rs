//! Identities of any two states, and the names of their keys.
#![no_main]

libfuzzer_sys::fuzz_target!(|two: [limiter_fuzz::name::Identity; 2]| limiter_fuzz::name::check(&two));
