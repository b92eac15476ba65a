//! Instruction counts of the decision paths, under callgrind.
//!
//! Each function makes [`DECISIONS`](limiter_instructions::DECISIONS) decisions. Its arguments are
//! prepared outside of the measurement, where the same decisions are made once: keys exist, and
//! values that are computed once are there. The function returns its arguments, so that they are
//! dropped outside of the measurement as well.
//!
//! Five measures make the counts repeatable:
//!
//! - In process, a manual clock replaces the system's. That one is read through the processor's
//!   counter and compared with the kernel's clock once in a millisecond of real time, so its
//!   instructions depend on the speed of the machine.
//! - With Redis, runtime and connection share the calling thread, and only instructions of this
//!   thread within the measured function count. The server is another process, and valgrind does
//!   not trace it.
//! - Calls are made in rounds of fixed size, and the next round starts when all answers are there.
//!   The number of wake-ups still varies a little: each of these functions is measured in three
//!   processes, and the lowest count is reported.
//! - The allocator of glibc keeps all freed blocks in the cache of the thread. Otherwise its work
//!   depends on the history of the heap, and varies by 1 % between processes.
//! - The policies have a deadline of a minute: a slow machine is no outage.

mod calls;
mod memory;
mod remote;
mod requests;
mod setup;

use gungraun::{Callgrind, LibraryBenchmarkConfig, main};

use calls::annotated;
use memory::in_process;
use remote::redis;
use requests::layer;

main!(
    config = LibraryBenchmarkConfig::default()
        .pass_through_envs(["PATH", "REDIS_SERVER"])
        .env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=4096")
        .tool(Callgrind::with_args(["--trace-children=no", "--cache-sim=no"])),
    library_benchmark_groups = [in_process, annotated, layer, redis]
);
