//! A server process that ends with its handle, and the processor time of processes.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest time in which a server has to accept connections.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// The unit of `/proc/PID/stat` on Linux.
const TICKS_PER_SECOND: u64 = 100;

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts a server that prints `label ADDRESS` when it is ready.
    pub(crate) fn printing(mut command: Command, label: &str) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let output = child.stdout.take().map(BufReader::new);
        let mut lines = output.into_iter().flat_map(BufRead::lines).map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix(label)?.trim().parse().ok());
        let address = address.unwrap_or_else(|| panic!("{command:?} prints no address of {label}"));
        // Read to the end, so that the server never blocks on its output.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    /// Starts a server that listens on a given address.
    pub(crate) fn listening(mut command: Command, address: SocketAddr) -> Self {
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let server = Self { child, address };
        let began = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            assert!(
                began.elapsed() < READY_WITHIN,
                "{command:?} does not listen on {address}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Returns the processor time of the process, including the kernel's part.
    pub(crate) fn processor_time(&self) -> Duration {
        processor_time(&self.child.id().to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the processor time of a process, by its id or `self`.
pub(crate) fn processor_time(process: &str) -> Duration {
    times(process, 11)
}

/// Returns the processor time of the processes that this one started and that have ended.
pub(crate) fn processor_time_of_children() -> Duration {
    times("self", 13)
}

/// User and system time, at these fields after the name of the program.
fn times(process: &str, skipped: usize) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program may contain spaces; fields 14 and 15 are user and system time,
    // 16 and 17 those of children.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut times = fields
        .split_whitespace()
        .skip(skipped)
        .map_while(|field| field.parse::<u64>().ok());
    let ticks = times.next().unwrap_or(0) + times.next().unwrap_or(0);
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

/// Returns an address of this machine with a free port.
pub(crate) fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("a bound address")
}
