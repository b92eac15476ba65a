//! Registries of policies as text.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| limiter_fuzz::registry::check(text));
