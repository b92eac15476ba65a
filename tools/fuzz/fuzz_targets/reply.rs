//! Answers of a server that parse, and mean anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|answer: limiter_fuzz::reply::Answer| answer.check());
