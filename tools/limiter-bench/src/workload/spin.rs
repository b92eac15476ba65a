//! Threads that decide in process, without a runtime.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Instant;

use super::Pace;
use crate::keys::{Distribution, Order};
use crate::latency::Latencies;
use crate::sample::{Sample, us_each};
use crate::usage::{self, THREADS};

/// The number of decisions per clock reading, so that the clock is not measured too; a latency is
/// their mean.
const BLOCK: u32 = 64;

const WARM: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// Decides in several threads, each with the closure that `prepare` returns for it, and over all
/// keys in its own order.
pub(super) fn spin<D: FnMut(usize) -> bool>(
    keys: usize,
    threads: usize,
    pace: Pace,
    prepare: impl Fn() -> D + Sync,
) -> Sample {
    let (order, phase) = (Order::new(Distribution::Even(keys)), AtomicU8::new(WARM));
    let (filled, barrier) = (
        std::sync::Barrier::new(threads + 1),
        std::sync::Barrier::new(threads + 1),
    );
    let work = |thread: usize| {
        let mut decide = prepare();
        // Every key is there before anything is measured.
        let denied = (thread * keys / threads..(thread + 1) * keys / threads).filter(|key| !decide(*key));
        assert_eq!(denied.count(), 0, "no call is denied");
        filled.wait();
        let mut walk = order.walk(thread, threads);
        let (mut decisions, mut denied, mut latencies) = (0_u64, 0_u64, Latencies::new());
        let mut started = Instant::now();
        while phase.load(Ordering::Relaxed) != OVER {
            let measured = phase.load(Ordering::Relaxed) == MEASURED;
            for _ in 0..BLOCK {
                denied += u64::from(!decide(walk.next()));
            }
            let ended = Instant::now();
            if measured {
                decisions += u64::from(BLOCK);
                latencies.record((ended - started) / BLOCK);
            }
            started = ended;
        }
        assert_eq!(denied, 0, "no call is denied");
        // The account of a thread that has ended is lost.
        barrier.wait();
        (decisions, latencies)
    };
    thread::scope(|scope| {
        let spawn = |thread| {
            let named = thread::Builder::new().name(THREADS.into());
            let work = &work;
            named
                .spawn_scoped(scope, move || work(thread))
                .expect("a thread can be had")
        };
        let workers: Vec<_> = (0..threads).map(spawn).collect();
        filled.wait();
        thread::sleep(pace.warm_up);
        let (before, started) = (usage::client(), Instant::now());
        phase.store(MEASURED, Ordering::Relaxed);
        thread::sleep(pace.window);
        phase.store(OVER, Ordering::Relaxed);
        let (took, after) = (started.elapsed(), usage::client());
        barrier.wait();
        let (mut decisions, mut latencies) = (0, Latencies::new());
        for worker in workers {
            let (more, those) = worker.join().expect("every call is decided");
            decisions += more;
            latencies.add(&those);
        }
        let mut sample = Sample::new(decisions, took, &latencies);
        let spent = after
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before));
        sample.client_us = spent.map(|spent| us_each(spent, decisions));
        sample
    })
}
