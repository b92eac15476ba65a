//! Rules and descriptors.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: limiter_server_fuzz::rules::RulesInput<'_>| {
    limiter_server_fuzz::rules::check(&input);
});
