//! The memory of a permit of an exact window in Redis, and of a key in process.

use std::process::Command;

use limiter_core::Limiter;

use crate::contender::{Contender, DecideNow, Governor, Mode, OursInProcess, Quota, TrypemaLocal, policy};
use crate::environment::{Environment, Place};
use crate::keys;
use crate::usage;
use crate::workload::{AMPLE, runtime};

/// The first argument of a process that fills its memory.
pub(crate) const ROLE: &str = "--fill-memory";

const KEYS: usize = 1_000_000;
const PERMITS: [u32; 2] = [1_000, 100_000];

/// One figure.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    pub(crate) description: String,
    pub(crate) contender: Contender,
    pub(crate) each: f64,
}

/// Returns all figures; windows first.
pub(crate) fn measure(environment: &Environment, contenders: &[Contender]) -> Vec<Bytes> {
    let windows = PERMITS.map(|permits| Bytes {
        description: format!("a permit of a full window of {permits}, in Redis"),
        contender: Contender::Ours,
        each: window(environment, permits),
    });
    let keys = contenders.iter().map(|contender| Bytes {
        description: format!("a key of {KEYS}, in process"),
        contender: *contender,
        each: key(*contender),
    });
    windows.into_iter().chain(keys).collect()
}

/// Fills a window in steps, as calls would, and queries the memory of its key.
fn window(environment: &Environment, permits: u32) -> f64 {
    let namespace = format!("bench-memory-{permits}");
    let quota = Quota {
        permits,
        seconds: 3_600,
    };
    let limits = Limiter::redis(&environment.address(Place::Server).limited_user()[0]).namespace(&namespace);
    let limits = limits.build().expect("the settings are valid");
    let policy = policy("window", quota, Mode::Window);
    runtime().block_on(async {
        for _ in 0..1_000 {
            let decision = limits.check(&policy, "ann").cost(permits / 1_000).await;
            assert!(
                decision.expect("Redis decides").is_allowed(),
                "the window is not full yet"
            );
        }
    });
    let server = environment.server();
    let stored = server.command(&["KEYS", &format!("{namespace}|sw|*")]);
    let used = stored.items().iter().map(|key| {
        let command: [&[u8]; 5] = [b"MEMORY", b"USAGE", key.bytes(), b"SAMPLES", b"0"];
        server.command(&command).integer() as f64
    });
    used.sum::<f64>() / f64::from(permits)
}

/// Measures the growth of a separate process, because memory that the allocator reserves is used,
/// but not visible in counts of allocations.
fn key(contender: Contender) -> f64 {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    let output = command
        .args([ROLE, contender.name()])
        .output()
        .expect("a process can be had");
    let printed = String::from_utf8_lossy(&output.stdout);
    printed
        .trim()
        .parse()
        .unwrap_or_else(|_| panic!("{} printed `{printed}`", contender.name()))
}

/// The process: prints by how much it has grown for each key.
pub(crate) fn child(args: &[String]) {
    let contender = args
        .first()
        .and_then(|name| Contender::named(name))
        .expect("a contender");
    let each = match contender {
        Contender::Ours => filled(&OursInProcess::new(AMPLE)),
        Contender::Governor => filled(&Governor::new(AMPLE)),
        Contender::TrypemaLocal => filled(&TrypemaLocal::new(AMPLE)),
        other => panic!("{} keeps nothing in process", other.name()),
    };
    println!("{each}");
}

fn filled(contender: &impl DecideNow) -> f64 {
    let before = usage::resident_bytes();
    for key in 0..KEYS {
        assert!(contender.decide_now(&keys::name(key)), "no call is denied");
    }
    let after = usage::resident_bytes();
    after.saturating_sub(before) as f64 / KEYS as f64
}
