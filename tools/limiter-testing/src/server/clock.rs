//! A server with a wall clock that a test can shift.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{RedisServer, RedisServerBuilder};
use crate::{RespValue, wait};

const SOURCE: &str = include_str!("clock.c");
const OFFSET_FILE: &str = "clock.offset";
const LIBRARY: &str = "clock.so";
/// The longest time in which a server has to follow its clock.
const FOLLOW_LIMIT: Duration = Duration::from_secs(5);
/// The output of the library once it is active.
const LOADED: &str = "the clock of this server is movable";

impl RedisServerBuilder {
    /// Gives the server a wall clock that [`shift_clock`](RedisServer::shift_clock) moves; default:
    /// the clock of the machine.
    ///
    /// This needs Linux and a C compiler, `cc`: a small library is built when the first such server
    /// of the process starts, and preloaded into the server.
    #[must_use]
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }
}

impl RedisServer {
    /// Sets by how many microseconds the server's wall clock is ahead of the machine's, or behind,
    /// if the number is negative; zero at the start.
    ///
    /// `TIME`, scripts and the expiry of keys follow before this returns, if the server replies:
    /// Valkey reads the clock once in a millisecond. Monotonic clocks (such as that of timers) do
    /// not follow. Calls do not add up: `shift_clock(0)` removes the shift. The shift survives a
    /// [`restart`](Self::restart).
    ///
    /// # Panics
    /// If the server was built without [`movable_clock`](RedisServerBuilder::movable_clock).
    #[track_caller]
    pub fn shift_clock(&self, ahead_us: i64) {
        match replace_offset(&self.dir().join(OFFSET_FILE), ahead_us) {
            Ok(replaced) if replaced != ahead_us => self.wait_for_clock(replaced, ahead_us),
            Ok(_) => {}
            Err(error) => panic!(
                "the server on port {} was built without a movable clock: {error}",
                self.port()
            ),
        }
    }

    /// Waits until the server's time is closer to the new shift than to the old one. A server that
    /// does not reply follows later.
    #[track_caller]
    fn wait_for_clock(&self, old: i64, new: i64) {
        let followed = wait::poll(FOLLOW_LIMIT, || match self.query(&["TIME"]) {
            Ok(reply) => {
                let shift = shift_of(reply.items());
                (shift.abs_diff(new) <= shift.abs_diff(old)).then_some(())
            }
            Err(_) => Some(()),
        });
        assert!(
            followed.is_some(),
            "the server on port {} does not follow its clock",
            self.port()
        );
    }
}

/// Writes a shift, and returns the previous one.
fn replace_offset(path: &Path, ahead_us: i64) -> io::Result<i64> {
    let old = fs::read(path)?.try_into().map(i64::from_ne_bytes);
    // The content is replaced and not the file, which the server has mapped.
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(&ahead_us.to_ne_bytes())?;
    old.map_err(|_| io::Error::other("its file has another length"))
}

/// Returns the microseconds by which a reply to `TIME` is ahead of the machine's clock.
fn shift_of(time: &[RespValue]) -> i64 {
    let [seconds, micros] = time else { return 0 };
    let number = |value: &RespValue| value.text().parse::<i64>().unwrap_or(0);
    let server = number(seconds) * 1_000_000 + number(micros);
    let machine = SystemTime::now().duration_since(UNIX_EPOCH);
    let machine = machine.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX));
    server - machine
}

/// Starts a program that has the library preloaded.
pub(super) fn spawn(program: &Path, args: &[&str]) -> RedisServer {
    if cfg!(not(target_os = "linux")) {
        panic!("a server's clock can be moved on Linux only");
    }
    // Relative paths refer to the directory of the server, in which it is started.
    let mut command: Vec<OsString> = [
        format!("LD_PRELOAD=./{LIBRARY}"),
        format!("LIMITER_CLOCK=./{OFFSET_FILE}"),
    ]
    .map(OsString::from)
    .into();
    command.push(program.into());
    command.extend(args.iter().map(OsString::from));
    let server = RedisServer::spawn(Path::new("env"), &command, |dir| {
        if let Err(error) = prepare(dir) {
            panic!("no server with a movable clock: {error}");
        }
    });
    assert!(
        server.log().contains(LOADED),
        "the clock's library was not loaded; the log of the server ends:\n{}",
        server.log_tail()
    );
    server
}

fn prepare(dir: &Path) -> io::Result<()> {
    // Only the file's content is kept, because a directory of this process would outlive it.
    static BUILT: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    let library = BUILT
        .get_or_init(|| build(dir).map_err(|error| error.to_string()))
        .as_ref()
        .map_err(|message| io::Error::other(message.clone()))?;
    fs::write(dir.join(LIBRARY), library)?;
    fs::write(dir.join(OFFSET_FILE), 0_i64.to_ne_bytes())
}

fn build(dir: &Path) -> io::Result<Vec<u8>> {
    fs::write(dir.join("clock.c"), SOURCE)?;
    let output = Command::new("cc")
        .args([
            "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", "built.so", "clock.c",
        ])
        .current_dir(dir)
        .output()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => io::Error::other(
                "there is no C compiler `cc` on PATH (Debian, Ubuntu: `apt-get install gcc libc6-dev`)",
            ),
            _ => error,
        })?;
    if output.status.success() {
        fs::read(dir.join("built.so"))
    } else {
        let messages = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("`cc` failed:\n{messages}")))
    }
}
