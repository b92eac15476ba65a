//! Calls at any moments, under any policies that can be built.
#![no_main]

libfuzzer_sys::fuzz_target!(|trace: limiter_fuzz::trace::Trace| trace.check());
