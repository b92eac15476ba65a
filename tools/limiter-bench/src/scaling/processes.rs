//! Several processes that call one Redis server.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::task::consume_budget;

use crate::contender::{Contender, ContenderVisitor, Decide, Setup, introduce};
use crate::environment::{Address, Environment, Place};
use crate::keys::{Order, names};
use crate::sample::us_each;
use crate::usage;
use crate::workload::{Pace, STRICT, runtime};

/// The first argument of a process that calls.
pub(crate) const ROLE: &str = "--share-a-server";

/// Until all processes have started and connected.
const HEAD_START: Duration = Duration::from_millis(600);
const TASKS: usize = 64;

/// The figures of one turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) decisions_per_second: f64,
    pub(super) server_us: f64,
}

/// Lets this number of processes call for the time of a turn.
pub(super) fn turn(processes: usize, environment: &Environment, pace: Pace) -> Turn {
    let Address::Server(port) = environment.address(Place::Server) else {
        unreachable!("one server");
    };
    environment.server().command(&["FLUSHALL"]);
    let begin = SystemTime::now() + HEAD_START + pace.warm_up;
    let millis = |time: Duration| time.as_millis().to_string();
    let children: Vec<Child> = (0..processes)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
            command
                .args([ROLE, &port.to_string()])
                .arg(millis(begin.duration_since(UNIX_EPOCH).unwrap_or_default()))
                .arg(millis(pace.window))
                .stdout(Stdio::piped());
            command.spawn().expect("a process can be started")
        })
        .collect();
    thread::sleep(begin.duration_since(SystemTime::now()).unwrap_or_default());
    let spent = || usage::servers(environment.servers(Place::Server));
    let before = spent();
    thread::sleep(pace.window);
    let after = spent();
    let decisions = children.into_iter().map(decisions).sum();
    Turn {
        decisions_per_second: decisions as f64 / pace.window.as_secs_f64(),
        server_us: us_each(after.saturating_sub(before), decisions),
    }
}

fn decisions(child: Child) -> u64 {
    let output = child.wait_with_output().expect("the process ends");
    assert!(output.status.success(), "a process failed");
    let printed = String::from_utf8_lossy(&output.stdout);
    printed.trim().parse().expect("a number of decisions")
}

/// One of the processes: calls in a closed loop until the end of the turn, and prints the decisions
/// of its measured part.
pub(crate) fn child(args: &[String]) {
    let [port, begin, window] = args else {
        panic!("expected a port, a time and a duration, got {args:?}");
    };
    let millis = |text: &String| Duration::from_millis(text.parse().expect("a time in milliseconds"));
    let begin = (UNIX_EPOCH + millis(begin)).duration_since(SystemTime::now());
    let setup = Setup {
        address: Address::Server(port.parse().expect("a port")),
        prefix: "bench-ours-processes".to_owned(),
        quota: STRICT.quota,
        mode: STRICT.mode,
        limits: STRICT.limits,
        keys: names(STRICT.distribution.keys()),
    };
    let begin = Instant::now() + begin.unwrap_or_default();
    let caller = Caller {
        begin,
        end: begin + millis(window),
    };
    let decided = runtime().block_on(introduce(Contender::Ours, setup, caller));
    println!("{}", decided.expect("ours takes part"));
}

#[derive(Clone, Copy, Debug)]
struct Caller {
    begin: Instant,
    end: Instant,
}

impl ContenderVisitor for Caller {
    type Answer = u64;

    async fn meet<D: Decide>(self, contender: D) -> u64 {
        let (contender, order) = (Arc::new(contender), Order::new(STRICT.distribution));
        let call = |task| {
            let (contender, mut walk) = (Arc::clone(&contender), order.walk(task, TASKS));
            tokio::spawn(async move {
                let mut decided = 0;
                loop {
                    contender.decide(walk.next()).await;
                    let now = Instant::now();
                    if now >= self.end {
                        return decided;
                    }
                    decided += u64::from(now >= self.begin);
                    consume_budget().await;
                }
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(call).collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.expect("every call is decided");
        }
        sum
    }
}
