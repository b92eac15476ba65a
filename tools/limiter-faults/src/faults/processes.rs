//! Several processes without their store: together they admit the quota of one limit, plus a
//! rounding for each.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_core::{Limiter, Policy};
use limiter_testing::RedisServer;
use tokio::runtime::Builder;

use crate::trial::{Trial, namespace};

const WORKER: &str = "worker";
const PROCESSES: u32 = 4;
/// Not divisible by the number of processes, so that rounding shows.
const LIMITS: [u64; 3] = [10, 1, 1_001];
/// The number of calls of a worker, far above the largest limit.
const CALLS: u64 = 4_000;
/// After this time the processes have detected each other: the pauses between their heartbeats are
/// 250 ms, 500 ms and 1 s at first.
const DISCOVERED: Duration = Duration::from_millis(2_500);

/// Redis is down from the start with a configured number of processes; then Redis fails, and the
/// processes were counted before.
pub(crate) fn without_redis(trial: &Trial) {
    let server = RedisServer::start();
    server.kill();
    for limit in LIMITS {
        let workers: Vec<Worker> = (0..PROCESSES)
            .map(|_| Worker::start(&server, limit, true))
            .collect();
        judge(trial, "configured", limit, workers);
    }
    for limit in LIMITS {
        server.restart();
        let workers: Vec<Worker> = (0..PROCESSES)
            .map(|_| Worker::start(&server, limit, false))
            .collect();
        sleep(DISCOVERED);
        server.kill();
        judge(trial, "counted", limit, workers);
    }
}

fn judge(trial: &Trial, how: &str, limit: u64, mut workers: Vec<Worker>) {
    workers.iter_mut().for_each(Worker::go);
    let admitted: Vec<u64> = workers.into_iter().map(Worker::admitted).collect();
    let sum: u64 = admitted.iter().sum();
    let max_admitted = limit + u64::from(PROCESSES);
    let figure = format!("{sum} admitted by {PROCESSES} processes ({admitted:?}), their number {how}");
    // Each admits something, too: a share is at least 1.
    trial.report.row(
        figure,
        format!("≤ {limit} + {PROCESSES}"),
        sum <= max_admitted && !admitted.contains(&0),
    );
}

/// A second process of this program.
#[derive(Debug)]
struct Worker(Child);

impl Worker {
    fn start(server: &RedisServer, limit: u64, by_hand: bool) -> Self {
        let program = std::env::current_exe().expect("a program that runs has a path");
        let mut command = Command::new(program);
        command.args([
            WORKER,
            &server.url(),
            &namespace(),
            &limit.to_string(),
            &by_hand.to_string(),
        ]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Self(child.expect("this program can be started again"))
    }

    fn go(&mut self) {
        let stdin = self.0.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"go\n").expect("a worker that listens");
    }

    /// Returns the number of admitted calls that the worker prints.
    fn admitted(mut self) -> u64 {
        let mut line = String::new();
        let stdout = self.0.stdout.take().expect("a pipe");
        let printed = BufReader::new(stdout).read_line(&mut line);
        drop(self.0.stdin.take());
        let ended = self.0.wait();
        assert!(
            printed.is_ok() && ended.is_ok(),
            "a worker prints the number of admitted calls"
        );
        line.trim().parse().expect("a number")
    }
}

/// Runs as a worker process; `None` if the arguments do not request one.
pub(crate) fn worker(args: &[String]) -> Option<ExitCode> {
    let [word, url, namespace, limit, by_hand] = args else {
        return None;
    };
    if word != WORKER {
        return None;
    }
    let builder = Limiter::redis(url).namespace(namespace);
    let builder = if by_hand == "true" {
        builder.replicas(PROCESSES)
    } else {
        builder
    };
    let limits = builder.build().expect("a valid limiter");
    let limit: u64 = limit.parse().expect("a number");
    let policy = Policy::sliding_window("shared")
        .limit(limit)
        .window("1h")
        .build()
        .expect("a valid policy");
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let admitted = runtime.block_on(async {
        let printed = tokio::task::spawn_blocking(|| std::io::stdin().lines().next());
        // Decisions about another key: heartbeats go along with them.
        let began = Instant::now();
        while !printed.is_finished() && began.elapsed() < Duration::from_secs(60) {
            let _ = limits.check(&policy, "other").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut admitted = 0_u64;
        for _ in 0..CALLS {
            let answer = limits.check(&policy, "shared").await;
            admitted += u64::from(answer.is_ok_and(|decision| decision.is_allowed()));
        }
        admitted
    });
    println!("{admitted}");
    Some(ExitCode::SUCCESS)
}
