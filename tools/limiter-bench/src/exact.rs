//! The number of calls that four processes with one limit admit together.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::task::consume_budget;

use crate::contender::{Contender, ContenderVisitor, Decide, Mode, Quota, Setup, introduce};
use crate::environment::{Address, Environment, Place};
use crate::series::Shared;
use crate::workload::runtime;

/// The first argument of a process that takes part.
pub(crate) const ROLE: &str = "--share-a-limit";

const PROCESSES: usize = 4;
const TASKS: usize = 16;
/// So slow that nothing is refilled during the measurement.
const QUOTA: Quota = Quota {
    permits: 100,
    seconds: 3_600,
};
/// Until all have started, and connected.
const HEAD_START: Duration = Duration::from_millis(400);
const ASKING: Duration = Duration::from_millis(800);

/// Lets several processes use one limit concurrently; `None` for a contender in process.
pub(crate) fn shared(contender: Contender, mode: Mode, environment: &Environment) -> Option<Shared> {
    let Address::Server(port) = environment.address(Place::Server) else {
        return None;
    };
    let begin = SystemTime::now() + HEAD_START;
    let begin = begin.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let children: Vec<Child> = (0..PROCESSES)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
            command
                .args([ROLE, contender.name(), mode.name()])
                .args([port.to_string(), begin.to_string()])
                .stdout(Stdio::piped());
            command.spawn().expect("a process can be had")
        })
        .collect();
    let admitted = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("the process ends");
        assert!(
            output.status.success(),
            "a process with {} failed",
            contender.name()
        );
        String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse::<u64>()
            .expect("it prints a number")
    });
    Some(Shared {
        admitted: admitted.sum(),
        allowed: QUOTA.permits.into(),
    })
}

/// One of the processes: calls as fast as possible for a while, and prints the number of allowed
/// calls.
pub(crate) fn child(args: &[String]) {
    let [contender, mode, port, begin] = args else {
        panic!("expected a contender, a mode, a port and a time, got {args:?}");
    };
    let named = Mode::ALL.into_iter().find(|(_, name)| name == mode);
    let setup = Setup {
        address: Address::Server(port.parse().expect("a port")),
        prefix: format!("shared-{contender}-{mode}"),
        quota: QUOTA,
        mode: named.expect("a mode").0,
        limits: 1,
        keys: Arc::from(["everybody".to_owned()]),
    };
    let contender = Contender::named(contender).expect("a contender");
    let begin = UNIX_EPOCH + Duration::from_millis(begin.parse().expect("a time"));
    let admitted = runtime().block_on(introduce(contender, setup, Asker { begin }));
    println!("{}", admitted.expect("a contender that decides by itself"));
}

#[derive(Debug)]
struct Asker {
    begin: SystemTime,
}

impl ContenderVisitor for Asker {
    type Answer = u64;

    async fn meet<D: Decide>(self, contender: D) -> u64 {
        let contender = Arc::new(contender);
        thread::sleep(self.begin.duration_since(SystemTime::now()).unwrap_or_default());
        let until = Instant::now() + ASKING;
        let ask = |contender: Arc<D>| async move {
            let mut admitted = 0;
            while Instant::now() < until {
                admitted += u64::from(contender.decide(0).await);
                consume_budget().await;
            }
            admitted
        };
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| tokio::spawn(ask(Arc::clone(&contender))))
            .collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.expect("every call is decided");
        }
        admitted
    }
}
